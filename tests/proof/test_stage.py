"""A program plays conversations through the real proxy, at times that it sets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

import om_proxy
from om_proxy import Stage, Turn
from om_proxy.common.errors import ConfigError, OmError
from om_proxy.testing import notes
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer, message_text

START = datetime(2026, 1, 2, 10, tzinfo=UTC)
SECRET = bytes(range(32))
SETTINGS = """
memory:
  scope: resource
  economy: "off"
  observation: {message_tokens: 300, buffer_tokens: 100}
  reflection: {observation_tokens: 2000}
"""
REMARK = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 3
THREADS = ("s1", "s2", "s3")


async def answer(request: Mapping[str, Any]) -> str:
    return f"Noted, {len(request['messages'])} messages."


async def take_notes(request: Mapping[str, Any]) -> str:
    return notes.observe(message_text(request["messages"][-1]))


def create_stage(**options: Any) -> Stage:
    return Stage(
        SETTINGS,
        **{"actor": answer, "memory_model": take_notes, "now": START, "secret": SECRET} | options,
    )


async def play(stage: Stage, turn_count: int = 9) -> list[Turn]:
    histories: dict[str, list[Mapping[str, Any]]] = {name: [] for name in THREADS}
    turns = []
    for n, name in zip(range(turn_count), cycle(THREADS)):
        histories[name].append({"role": "user", "content": REMARK.format(n=n)})
        turns.append(await stage.chat(name, histories[name], resource="ana"))
        histories[name].append(turns[-1].reply)
        await stage.advance(START + timedelta(minutes=5 * n))
    return turns


async def list_prompts(secret: bytes) -> list[Any]:
    async with create_stage(secret=secret) as stage:
        turns = await play(stage)
        return [(turn.prompt, [call.request for call in turn.memory_calls]) for turn in turns]


async def test_two_runs_with_one_secret_send_equal_prompts() -> None:
    """Of the actor and of the memory model, with notes that threads of a resource share. With
    another secret the labels of threads differ."""
    first = await list_prompts(SECRET)
    assert any("<observations>" in str(prompt) for prompt, _ in first)
    assert any(calls for _, calls in first)
    assert await list_prompts(SECRET) == first
    assert await list_prompts(os.urandom(32)) != first


async def test_a_turn_tells_reply_prompt_receipt_and_memory_calls() -> None:
    async with create_stage() as stage:
        turns = await play(stage)
        assert turns[0].reply["content"] == "Noted, 1 messages."
        assert turns[0].prompt[-1]["content"] == REMARK.format(n=0)
        assert turns[0].receipt["status"] == "raw"
        assert turns[-1].receipt["status"] == "applied"
        assert all(call.status == 200 for turn in turns for call in turn.memory_calls)
        assert "Crate 0 weighs 0 kilos" in await stage.notes("s1")
        prompt = await stage.context("s1", text="And now?")
        assert prompt[-1]["content"] == "And now?"


async def test_idle_work_is_done_when_its_time_has_come() -> None:
    """What is below the threshold is noted once the thread has been idle."""
    async with create_stage() as stage:
        turn = await stage.chat(
            "s1", [{"role": "user", "content": REMARK.format(n=9)}], resource="ana"
        )
        assert not turn.memory_calls
        calls = await stage.advance(START + timedelta(days=7))
        assert len(calls) == 1
        assert "Crate 9" in await stage.notes("s1")


async def test_loaded_messages_have_their_times() -> None:
    """In the first thread of a stage, too. Loaded again, none is new."""
    said = [
        {"role": role, "content": text, "created_at": START - timedelta(days=30 - n)}
        for n in range(9)
        for role, text in (("user", REMARK.format(n=n)), ("assistant", f"Noted {n}."))
    ]
    async with create_stage() as stage:
        assert await stage.load("s1", said, resource="ana") == 18
        assert await stage.load("s1", said, resource="ana") == 0
        assert "Date: Dec 3, 2025" in await stage.notes("s1")
        turn = await stage.chat(
            "s2", [{"role": "user", "content": "Which crates?"}], resource="ana"
        )
        assert "Crate 0" in str(turn.prompt)


async def test_time_never_goes_back() -> None:
    async with create_stage() as stage:
        with pytest.raises(ValueError, match="never goes back"):
            await stage.advance(START - timedelta(seconds=1))


async def test_the_actor_takes_notes_where_no_memory_model_is_named() -> None:
    """Work of an idle thread, too."""
    asked: list[str] = []

    async def act(request: Mapping[str, Any]) -> str:
        asked.append(request["model"])
        text = message_text(request["messages"][-1])
        return notes.observe(text) if "<transcript>" in text or "# New messages" in text else "Yes."

    async with create_stage(actor=act, memory_model=None) as stage:
        await stage.chat("s1", [{"role": "user", "content": REMARK.format(n=9)}], resource="ana")
        (call,) = await stage.advance(START + timedelta(days=7))
        assert not call.is_actors
        assert asked == ["actor", "actor"]


async def test_models_on_servers_are_asked_by_name() -> None:
    """Any client may use the stage's address, and streamed answers pass."""
    models = ScriptedServer()
    async with (
        serve_on_loopback(models) as url,
        create_stage(
            actor=f"scripted-actor@{url}/v1", memory_model=f"scripted-observer@{url}/v1"
        ) as stage,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        turns = await play(stage)
        assert turns[0].reply["content"].startswith("Noted: Crate 0")
        assert models.requests_to("scripted-observer")
        body = {"model": "x", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        streamed = await http.post(f"{stage.url}/v1/chat/completions", json=body)
        assert streamed.text.endswith("data: [DONE]\n\n")


async def test_a_function_answers_a_client_that_streams() -> None:
    async with create_stage() as stage, httpx.AsyncClient(trust_env=False) as http:
        body = {"model": "x", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        streamed = await http.post(f"{stage.url}/v1/chat/completions", json=body)
        assert "Noted, 1 messages." in streamed.text.replace('"}', "")
        assert streamed.text.endswith("data: [DONE]\n\n")


async def test_a_server_that_is_away_is_an_error_that_names_it() -> None:
    async with create_stage(actor="m@http://127.0.0.1:9/v1") as stage:
        with pytest.raises(OmError, match=r"502.*m@http://127\.0\.0\.1:9"):
            await stage.chat("s1", [{"role": "user", "content": "Hi"}])


async def test_a_folder_keeps_the_database(tmp_path: Path) -> None:
    async with create_stage(folder=tmp_path / "kept") as stage:
        await play(stage)
        written = await stage.notes("s1")
    async with create_stage(folder=tmp_path / "kept", now=START + timedelta(days=1)) as stage:
        await stage.chat("s1", [{"role": "user", "content": "Go on."}], resource="ana")
        assert (await stage.notes("s1")).startswith(written)
    with pytest.raises(OmError, match="another secret"):
        async with create_stage(folder=tmp_path / "kept", secret=os.urandom(32)):
            pass


def test_wrong_settings_are_named_with_their_line() -> None:
    with pytest.raises(ConfigError, match=r"om-proxy\.yaml:3"):
        Stage("memory:\n  scope: resource\n  colour: red\n", actor=answer)


def test_importing_the_package_imports_nothing_more() -> None:
    code = "import sys; old = set(sys.modules); import om_proxy; print(*set(sys.modules) - old)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == ["om_proxy"]


def test_every_public_name_is_there() -> None:
    assert all(getattr(om_proxy, name) for name in om_proxy.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Scene'"):
        om_proxy.__getattr__("Scene")  # type: ignore[attr-defined] # no stub has it
