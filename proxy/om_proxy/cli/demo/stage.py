"""Run a scripted model server and the proxy before it on loopback ports: for the story, which sets
their clock, or for any client to try, without a key or a network."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from om_proxy.app.app import App
from om_proxy.cli.demo.story import Story
from om_proxy.common.errors import OmError
from om_proxy.management.api.sign_in import SignIn
from om_proxy.proof.stage import Stage
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ACTOR, OBSERVER, REFLECTOR, ScriptedServer

# the actors whose costs are shown
PRICED_ACTORS = ("gpt-5.4", "claude-sonnet-5-5", "gemini/gemini-3.5-flash")
# memory's own calls are priced as this model's, which `memory.model: default` names first
MEMORY_MODEL = "gemini/gemini-3.5-flash-lite"
# the scripted models by names whose end has a list price: those of the first row of costs
ACTOR_NAME = f"{ACTOR}/{PRICED_ACTORS[0]}"
OBSERVER_NAME = f"{OBSERVER}/{MEMORY_MODEL}"
REFLECTOR_NAME = f"{REFLECTOR}/{MEMORY_MODEL}"
# the proxy's whole configuration
SETTINGS_TEMPLATE = """
upstream: [{{name: scripted, base_url: "{models}/v1"}}]
storage: {{url: "sqlite:///{folder}/om.db"}}
memory:
  api_base: "{models}/v1"
  api_key: demo-memory-models
  observation: {{model: openai/{observer}, message_tokens: {message_tokens}}}
  reflection: {{model: openai/{reflector}, observation_tokens: {observation_tokens}}}
  retrieval: true
telemetry: {{log: "{log}"}}
"""
CONFIG_FILE = "demo.yaml"  # beside the database, for commands in another terminal
# low, for a short story: the defaults are about four and sixteen times larger
STORY_MESSAGE_TOKENS = 7_000
STORY_OBSERVATION_TOKENS = 2_500


# so low that memory applies in a client's second turn
TRIAL_MESSAGE_TOKENS = 100
TRIAL_OBSERVATION_TOKENS = 2_000
INTRODUCTION = """\
I am a scripted model, so I know only what stands in the prompt that I receive. Tell me facts with \
a number, one sentence each, for example: Our boat lies at pier 14. The notes keep such sentences, \
word for word. Go on with other things for a few turns. Then ask for the fact in its own words: At \
which pier lies our boat? I search the prompt for a sentence that shares the rare words of your \
question, and I repeat that sentence. If the prompt does not hold it, I look it up in the original \
messages, with the tool that om-proxy adds; if they do not hold it, I say that I do not know.

This first answer is so long for a reason: with your next message, the conversation has more than \
a hundred tokens. From then on om-proxy sends notes in place of the old messages, and the \
response header x-om-status changes from raw to applied. So an answer of mine to a question about \
an old message shows that the notes hold it. A real model writes better notes than I do, and it \
starts at thirty thousand tokens unless you set another threshold."""


class ServedDemo(NamedTuple):
    """A proxy that serves until a person ends it."""

    url: str  # without `/v1`
    config: Path  # its settings, for commands beside it
    sign_in: SignIn


@asynccontextmanager
async def open_stage(
    story: Story, count: Callable[[str], int], kept_folder: Path | None = None
) -> AsyncIterator[tuple[Stage, ScriptedServer]]:
    """Run the proxy and the scripted model server, whose time is the stage's. At the end, remove what
    the proxy stored, unless there is a `kept_folder` for it. `count` counts tokens for the server."""
    models = ScriptedServer(story.script, count=count, clock=lambda: stage.clock.now)
    async with serve_on_loopback(models) as models_url:
        stage = Stage(
            write_scripted_settings(models_url, "", STORY_MESSAGE_TOKENS, STORY_OBSERVATION_TOKENS),
            actor=f"{ACTOR_NAME}@{models_url}/v1",
            now=story.turns[0].at,
            folder=kept_folder,
        )
        async with stage:
            yield stage, models


def write_scripted_settings(
    models_url: str, folder: str, message_tokens: int, observation_tokens: int, log: str = "off"
) -> str:
    """Write the settings of a proxy in front of a scripted model server, with its database in
    `folder`."""
    return SETTINGS_TEMPLATE.format(
        models=models_url,
        folder=folder,
        observer=OBSERVER_NAME,
        reflector=REFLECTOR_NAME,
        message_tokens=message_tokens,
        observation_tokens=observation_tokens,
        log=log,
    )


@asynccontextmanager
async def serve_trial(port: int, *, log: str = "console") -> AsyncIterator[ServedDemo]:
    """Run the proxy until the block ends. At the end, remove what it stored.

    Raises OmError if the port is in use."""
    models = ScriptedServer(introduction=INTRODUCTION)
    thresholds = (TRIAL_MESSAGE_TOKENS, TRIAL_OBSERVATION_TOKENS)
    with tempfile.TemporaryDirectory(prefix="om-proxy-trial-") as folder:
        async with _serve(models, Path(folder), thresholds, port, log=log) as served:
            yield served


@asynccontextmanager
async def serve_kept(story: Story, folder: Path, port: int) -> AsyncIterator[ServedDemo]:
    """Serve what is kept in `folder`, in front of the story's model. If the port is in use, another
    one is taken.

    It is the story's last minute whenever this begins: to the real clock all events of the story
    are too old to be kept. A command has the real clock, and its writes remove no event by age."""
    clock = run_clock_from(story.turns[-1].at)
    models = ScriptedServer(story.script, clock=clock)
    thresholds = (STORY_MESSAGE_TOKENS, STORY_OBSERVATION_TOKENS)
    async with _serve(models, folder, thresholds, choose_port(port), clock=clock) as served:
        yield served


@asynccontextmanager
async def _serve(
    models: ScriptedServer,
    folder: Path,
    thresholds: tuple[int, int],
    port: int,
    *,
    log: str = "off",
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[ServedDemo]:
    """Run the proxy in front of the models, with its database and its settings in the folder."""
    async with serve_on_loopback(models) as models_url:
        config, sign_in = folder / CONFIG_FILE, SignIn()
        text = write_scripted_settings(models_url, str(folder), *thresholds, log)
        config.write_text(text, encoding="utf-8")
        app = App(parse(text), clock=clock, sign_in=sign_in)
        async with serve_on_loopback(app, port=port, lifespan="on") as url:
            yield ServedDemo(url, config, sign_in)


@contextmanager
def open_unfinished(folder: Path) -> Iterator[Path]:
    """Yield a folder to write into, beside `folder`. Remove it, unless it becomes `folder` by
    renaming it: a story that broke off leaves nothing. Raise OmError if that cannot be."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # its removal ignores that it is gone
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
            yield Path(name)
    except OSError as exc:
        raise OmError(f"{folder} cannot be written: {exc.strerror}; name another folder") from exc


def run_clock_from(at: float) -> Callable[[], float]:
    """Return a clock that shows `at` now, and runs on."""
    begun_at_s = time.monotonic()
    return lambda: at + time.monotonic() - begun_at_s


def choose_port(port: int) -> int:
    """Return the port, or 0 (any free one) if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
