"""Run a scripted model server and the proxy before it on loopback ports: for the story, which sets
their clock, or for any client to try, without a key or a network."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from om_proxy.app.app import App, create_app
from om_proxy.cli.demo.figures import ACTOR_NAME, OBSERVER_NAME, REFLECTOR_NAME
from om_proxy.cli.demo.story import Story
from om_proxy.management.api.sign_in import SignIn
from om_proxy.proof.stage import Stage
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer

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


@contextlib.asynccontextmanager
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


def create_scripted_app(
    config: Path, text: str, sign_in: SignIn, clock: Callable[[], float] = time.time
) -> App:
    """Write the settings to the file `config`, and create their proxy."""
    config.write_text(text, encoding="utf-8")
    return create_app(parse(text), clock=clock, sign_in=sign_in)


@asynccontextmanager
async def serve_trial(port: int, *, log: str = "console") -> AsyncIterator[ServedDemo]:
    """Run the proxy until the block ends. At the end, remove what it stored.

    Raises OmError if the port is in use."""
    models = ScriptedServer(introduction=INTRODUCTION)
    with tempfile.TemporaryDirectory(prefix="om-proxy-trial-") as folder:
        async with serve_on_loopback(models) as models_url:
            config = Path(folder) / CONFIG_FILE
            text = write_scripted_settings(
                models_url, folder, TRIAL_MESSAGE_TOKENS, TRIAL_OBSERVATION_TOKENS, log
            )
            sign_in = SignIn()
            app = create_scripted_app(config, text, sign_in)
            async with serve_on_loopback(app, port=port, lifespan="on") as url:
                yield ServedDemo(url, config, sign_in)
