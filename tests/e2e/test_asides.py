"""Side requests of agents and chat pages, between real requests: they get no memory and leave none;
the conversation keeps its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.memory.model import Key, Memory
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.e2e.raw_upstream import ProxyUnderTest, read_reason, run_with_raw_upstream

T = b"X-OM-Thread: t"
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
SYSTEM = {"role": "system", "content": "You are a coding agent."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


REPLY = {"role": "assistant", "content": "fünf €"}  # what the model server says


def body(*messages: dict[str, Any], **more: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": list(messages), **more})


async def state(site: ProxyUnderTest) -> Memory:
    return await site.app.store.load(Key(LOCAL_TENANT, "t", "t"))


async def agent(site: ProxyUnderTest, **offered: Any) -> list[dict[str, Any]]:
    """Two turns of a client that resends its history; what it holds now."""
    history = [SYSTEM]
    for text in ("fix the build", "now the tests"):
        history.append(user(text))
        assert read_reason(await site.ask(body(*history, **offered), T)) == "raw"
        history.append(REPLY)
    return history


OFFERED = [{"tools": TOOLS}, {"functions": [{"name": "bash"}]}]


@pytest.mark.parametrize("offered", OFFERED)
async def test_a_request_without_tools_that_repeats_nothing(
    tmp_path: Path, offered: dict[str, Any]
) -> None:
    """It passes to the byte, also after a restart, and the conversation goes on as if it had not
    been."""
    title = body(
        {"role": "system", "content": "Name this."}, user("Somebody wants the build fixed.")
    )
    async with run_with_raw_upstream(tmp_path) as site:
        history = await agent(site, **offered)
        before = await state(site)
        got = await site.ask(title, T)
        assert (read_reason(got), site.seen.body) == ("off/side-request", title)
        assert await state(site) == before
    async with run_with_raw_upstream(tmp_path) as site:
        assert read_reason(await site.ask(title, T)) == "off/side-request"
    async with run_with_raw_upstream(tmp_path) as site:
        assert (
            read_reason(await site.ask(body(*history, user("and the docs"), **offered), T)) == "raw"
        )
        assert (await state(site)).count == 6


@pytest.mark.parametrize("nothing", [{}, {"tools": []}, {"tools": None}])
async def test_a_turn_without_tools_that_repeats_the_conversation(
    tmp_path: Path, nothing: dict[str, Any]
) -> None:
    """A compaction, or tools that were switched off: an ordinary turn."""
    async with run_with_raw_upstream(tmp_path) as site:
        history = await agent(site, tools=TOOLS)
        assert (
            read_reason(await site.ask(body(user("a title?"), **nothing), T)) == "off/side-request"
        )
        assert (
            read_reason(await site.ask(body(*history, user("Summarise all this."), **nothing), T))
            == "raw"
        )
        assert (await state(site)).count == 6


async def test_a_request_with_tools_that_repeats_nothing(tmp_path: Path) -> None:
    """An agent that was started anew in its thread: part of the conversation."""
    async with run_with_raw_upstream(tmp_path) as site:
        await agent(site, tools=TOOLS)
        got = await site.ask(body(SYSTEM, user("Where were we?"), tools=TOOLS), T)
        assert read_reason(got) == "applied"
        assert (await state(site)).count == 6


async def test_a_thread_without_tools(tmp_path: Path) -> None:
    """A message alone may be another device's."""
    async with run_with_raw_upstream(tmp_path) as site:
        await agent(site)
        assert read_reason(await site.ask(body(user("Where were we?")), T)) == "applied"


async def test_a_thin_client_of_an_agent(tmp_path: Path) -> None:
    """It sends its newest message alone, with tools or without: each is a turn."""
    async with run_with_raw_upstream(tmp_path) as site:
        assert read_reason(await site.ask(body(user("one"), tools=TOOLS), T)) == "raw"
        assert read_reason(await site.ask(body(user("two")), T)) == "applied"
        assert read_reason(await site.ask(body(user("three")), T)) == "applied"
        assert (await state(site)).count == 6


async def test_another_device_says_what_it_sends(tmp_path: Path) -> None:
    """`X-OM-History: new`: its message is part of the agent's conversation."""
    async with run_with_raw_upstream(tmp_path) as site:
        await agent(site, tools=TOOLS)
        assert (
            read_reason(await site.ask(body(user("From my phone: ship it.")), T))
            == "off/side-request"
        )
        got = await site.ask(body(user("From my phone: ship it.")), T, b"X-OM-History: new")
        assert read_reason(got) == "applied"
        assert (await state(site)).count == 6


async def test_the_newest_turn_says_whether_tools_are_offered(tmp_path: Path) -> None:
    """After a turn without them a message alone may be another device's, until they are offered
    again."""
    async with run_with_raw_upstream(tmp_path) as site:
        history = await agent(site, tools=TOOLS)
        assert (
            read_reason(await site.ask(body(user("From my phone: ship it.")), T))
            == "off/side-request"
        )
        history.append(user("now without tools"))
        assert read_reason(await site.ask(body(*history), T)) == "raw"
        assert (await state(site)).count == 6
        assert read_reason(await site.ask(body(user("From my phone: ship it.")), T)) == "applied"
        assert (await state(site)).count == 8
        history += [REPLY, user("From my phone: ship it."), REPLY, user("with tools again")]
        assert read_reason(await site.ask(body(*history, tools=TOOLS), T)) == "raw"
        assert read_reason(await site.ask(body(user("a title?")), T)) == "off/side-request"
        assert (await state(site)).count == 10


async def test_a_conversation_that_begins_like_a_side_request(tmp_path: Path) -> None:
    """Its first turn is taken for one, and no later turn is: what the client shows then is all
    kept."""
    async with run_with_raw_upstream(tmp_path) as site:
        first = user("### Task:\nPaint the fence. Tell me how.")
        assert read_reason(await site.ask(body(SYSTEM, first), T)) == "off/side-request"
        history = [SYSTEM, first, REPLY]
        for count, text in ((4, "Which colour?"), (6, "How much of it?")):
            history.append(user(text))
            assert read_reason(await site.ask(body(*history), T)) == "raw"
            history.append(REPLY)
            assert (await state(site)).count == count


async def test_what_a_tool_has_read_tells_nothing(tmp_path: Path) -> None:
    """A file that begins like a title prompt is no title request."""
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    steps = (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "### Task: x"},
    )
    async with run_with_raw_upstream(tmp_path) as site:
        assert (
            read_reason(await site.ask(body(SYSTEM, user("read it"), *steps, tools=TOOLS), T))
            == "raw"
        )
        assert (await state(site)).count == 4
