"""A server imports what it uses: the rest comes with the first request for it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from om_proxy.app import management
from tests.cli.command_line import clean_environment
from tests.e2e.running import run_with_scripted_models

# modules and packages that no turn of a chat needs
UNUSED_BY_CHAT = (
    "om_proxy.app.look_ups",
    "om_proxy.app.management",
    "om_proxy.engine.event_feed.feed",
    "om_proxy.engine.event_feed.webhooks",
    "om_proxy.engine.recall.performing",
    "om_proxy.engine.recall.searching",
    "om_proxy.engine.recall.turn_look_ups",
    "om_proxy.engine.turns.message_importer",
    "om_proxy.engine.turns.preview",
    "om_proxy.management.api.admin_api",
    "om_proxy.management.api.routes",
    "om_proxy.management.dashboard",
    "om_proxy.management.mcp",
    "om_proxy.management.memory_export",
    "om_proxy.management.moving",
    "om_proxy.management.note_editor",
    "om_proxy.management.thread_admin",
    "om_proxy.management.message_reader",
    "om_proxy.observability.spans",
    "om_proxy.storage.encryption.master_keys",
    "om_proxy.storage.postgres",
    "om_proxy.storage.redis",
    "cryptography",
    "litellm",
    "opentelemetry",
    "starlette.routing",
)
FIRST_TURNS = """
import asyncio, pathlib, sys
from tests.e2e.running import run_with_scripted_models

async def play(folder):
    async with run_with_scripted_models(folder) as run:
        talk = run.chat()
        for text in ("The dock is 2.85 m high.", "It is 3 m wide.", "How high is it?"):
            await talk.say(text)
        await run.app.background.wait_idle()
        print(*sys.modules, sep="\\n")

asyncio.run(play(pathlib.Path(sys.argv[1])))
"""


def test_the_first_turns_import_no_management(tmp_path: Path) -> None:
    """Each module takes time of every start, and memory of every server."""
    played = subprocess.run(
        [sys.executable, "-c", FIRST_TURNS, str(tmp_path)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    assert all(find_spec(name) for name in UNUSED_BY_CHAT)  # none was renamed
    assert sorted(set(played.stdout.split()).intersection(UNUSED_BY_CHAT)) == []


async def test_what_cannot_be_loaded_holds_up_no_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request below `/om` is told so, and the next one tries again."""
    async with run_with_scripted_models(tmp_path) as run:

        def fail(*_: object) -> None:
            raise ImportError("a package is broken")

        with monkeypatch.context() as broken, capture_logs() as lines:
            broken.setattr(management, "create_admin_services", fail)
            refused = [await run.http.get(f"{run.base}/om{path}") for path in ("/", "/v1/threads")]
            assert (await run.chat().say("hello"))[1]["status"] == "raw"
        assert [answer.status_code for answer in refused] == [503, 503]
        assert refused[0].json()["error"]["code"] == "om_overloaded"
        told = [line for line in lines if line["event"] == "management.unloaded"]
        assert [line["error"] for line in told] == ["ImportError"] * 2
        assert all(line["at"].startswith("test_app_imports.py:") for line in told)
        for path in ("/", "/v1/threads"):
            assert (await run.http.get(f"{run.base}/om{path}")).status_code == 200


async def test_what_is_loaded_later_forgets_too(tmp_path: Path) -> None:
    """Whatever holds texts drops them when a thread is forgotten, whenever it was created."""
    async with run_with_scripted_models(tmp_path) as run:
        memories = run.app._memories
        assert memories is not None
        hooks = memories.traces.on_words_erased
        before = len(hooks)
        previewer = (await run.app.management.get()).services.previewer
        assert previewer.drop_texts in hooks[before:]
