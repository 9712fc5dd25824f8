"""Keep the memory of the played story in a folder, and serve it with the dashboard."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from om_proxy.cli.demo.stage import (
    CONFIG_FILE,
    STORY_MESSAGE_TOKENS,
    STORY_OBSERVATION_TOKENS,
    ServedDemo,
    create_scripted_app,
    write_scripted_settings,
)
from om_proxy.cli.demo.story import Story
from om_proxy.common.errors import OmError
from om_proxy.management.api.sign_in import SignIn
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer


@contextlib.contextmanager
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


@contextlib.asynccontextmanager
async def serve_kept(story: Story, folder: Path, port: int) -> AsyncIterator[ServedDemo]:
    """Serve what is kept in `folder`, in front of the story's model. If the port is in use, another
    one is taken.

    It is the story's last minute whenever this begins: to the real clock all events of the story
    are too old to be kept. A command has the real clock, and its writes remove no event by age."""
    clock = run_clock_from(story.turns[-1].at)
    models = ScriptedServer(story.script, clock=clock)
    async with serve_on_loopback(models) as models_url:
        text = write_scripted_settings(
            models_url, str(folder), STORY_MESSAGE_TOKENS, STORY_OBSERVATION_TOKENS
        )
        sign_in = SignIn()
        app = create_scripted_app(folder / CONFIG_FILE, text, sign_in, clock)
        async with serve_on_loopback(app, port=choose_port(port), lifespan="on") as url:
            yield ServedDemo(url, folder / CONFIG_FILE, sign_in)


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
