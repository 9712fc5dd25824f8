"""Whole sessions of coding agents that name their thread, in the form in which they send them: each
prompt goes out by the byte, and what is no turn of the conversation is not stored in it
(docs/contributing/protocols.md#coding-agents)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from om_proxy.memory.model import Memory
from om_proxy.testing.scripted import ACTOR, ScriptedServer, message_text
from om_proxy.wire.apis.registry import get_api
from tests.e2e.running import Running, run_with_scripted_models
from tests.support.three_apis import PATHS, Api, read_reply

Json = dict[str, Any]
# soon enough that the prompts of other clients would hold notes
MEMORY = "observation: {message_tokens: 250, buffer_tokens: 100}, retrieval: false"
SIDE, AGENT = "off/side-request", "raw/coding-agent"
SURROUNDINGS = "The shell is bash."
PLAN = "The planner of van 7 lives in plan.py, and its tests are in test_plan.py. " * 6
LOOK = "Which files read the plan of van 7"
FOUND = "Only report.py reads the plan."
TITLE = "Name this session of the planner"
ASIDE = "By the way, what does a lease mean"
COMPACT = "Sum up all of this, so that we can go on without it"
SUMMARY = "So far we looked at plan.py and found that report.py reads it."
CALL = {
    "id": "toolu_1",
    "type": "function",
    "function": {"name": "Agent", "arguments": '{"prompt":"look"}'},
}
LOOKS = {"role": "assistant", "content": "I let one look.", "tool_calls": [CALL]}
# by the last message of a request, which may be the agent's own about its surroundings
SCRIPT: Mapping[str, Json] = {
    TITLE: {"role": "assistant", "content": '{"title":"Plans of van 7"}'},
    SURROUNDINGS: LOOKS,
    f"{PLAN}{LOOK}": LOOKS,
}


@dataclass
class Session:
    """An agent that names its thread in each request."""

    running: Running
    api: Api
    headers: Mapping[str, str]

    async def ask(self, body: Json, **headers: str) -> tuple[str, Json]:
        """Return what the receipt says and the reply as a chat message. The model server got each
        byte."""
        sent = orjson.dumps({"model": ACTOR, "stream": True, **body})
        asked_before = len(self.running.models.requests_to(ACTOR))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.running.http.post(
            self.running.base + PATHS[self.api],
            content=sent,
            headers={"x-om-thread": "t", **self.headers, **named},
        )
        assert answer.status_code == 200, answer.text
        await self.running.app.background.wait_idle()
        [arrived] = self.running.models.requests_to(ACTOR)[asked_before:]
        assert arrived.body == sent
        receipt = f"{answer.headers['x-om-status']}/{answer.headers['x-om-reason']}"
        return receipt, read_reply(self.api, answer.content, stream=True)

    async def load(self, thread: str) -> Memory:
        [memory] = [m for m in await self.running.memories() if m.key.thread == thread]
        return memory

    async def read_texts(self, thread: str) -> list[str]:
        """Read what the live messages of a thread say."""
        messages = await self.running.app.store.messages((await self.load(thread)).key, 0)
        return [message_text(get_api(m.item.api).read_chat_message(m.item.raw)) for m in messages]

    async def list_threads(self) -> set[str]:
        return {memory.key.thread for memory in await self.running.memories()}


# ── the Messages API ──────────────────────────────────────────────────────────────────────────────

MARK = {"cache_control": {"type": "ephemeral"}}
CONTEXT = "<system-reminder>\nThe project's rules stand here.\n</system-reminder>"
TURN_MEMBERS: Json = {
    "max_tokens": 32_000,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "metadata": {"user_id": '{"session_id":"s"}'},
    "tools": [{"name": "Agent", "input_schema": {"type": "object"}}],
    "system": [
        {"type": "text", "text": "x-billing: version=1;"},
        {"type": "text", "text": "You work in a terminal.", **MARK},
    ],
}
ASKS_FOR_TITLE: Json = {
    "max_tokens": 32_000,
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "tools": [],
    "system": [{"type": "text", "text": "You name sessions by a short title."}],
}


def text(words: str, *, marked: bool = False) -> Json:
    return {"type": "text", "text": words, **(MARK if marked else {})}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def thought(*blocks: Json) -> Json:
    thinking = {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"}
    return {"role": "assistant", "content": [thinking, *blocks]}


async def test_a_session_by_messages(tmp_path: Path) -> None:
    first = user(text(CONTEXT), text(PLAN + LOOK))
    surroundings = {"role": "system", "content": [text(SURROUNDINGS, marked=True)]}
    call = {"type": "tool_use", "id": CALL["id"], "name": "Agent", "input": {"prompt": "look"}}
    looks = thought(text("I let one look."), call)
    looks_marked = thought(text("I let one look."), {**call, **MARK})
    result = {"type": "tool_result", "tool_use_id": CALL["id"], "content": FOUND}
    known = [first, {"role": "system", "content": SURROUNDINGS}]
    async with run_with_scripted_models(tmp_path, MEMORY, models=ScriptedServer(SCRIPT)) as running:
        headers = {"x-api-key": "sk-ant-a", "x-claude-code-session-id": "s"}
        session = Session(running, "messages", headers)

        async def turn(*messages: Json, **headers: str) -> tuple[str, Json]:
            return await session.ask({**TURN_MEMBERS, "messages": list(messages)}, **headers)

        async def name_session() -> str:
            return (await session.ask({**ASKS_FOR_TITLE, "messages": [user(text(TITLE))]}))[0]

        assert await name_session() == SIDE
        assert await session.list_threads() == set()
        receipt, reply = await turn(first, surroundings)
        assert (receipt, reply["content"]) == (AGENT, "I let one look.")
        assert await name_session() == SIDE
        sub_agent = user(text(CONTEXT), text(LOOK, marked=True))
        receipt, _ = await turn(sub_agent, x_claude_code_agent_id="a7")
        assert receipt == AGENT
        receipt, done = await turn(*known, looks, user({**result, **MARK}))
        assert receipt == AGENT
        before = await session.read_texts("t")
        assert (await turn(*known, looks_marked, user(result, text(ASIDE))))[0] == SIDE
        assert (await turn(*known, looks_marked, user(result, text(COMPACT))))[0] == SIDE
        assert await session.read_texts("t") == before
        said = thought(text(done["content"]))
        again = user(text(f"{PLAN}Go on.", marked=True))
        assert (await turn(*known, looks, user(result), said, again))[0] == AGENT
        assert (await session.load("t")).chunks, "it is observed, all the same"
        folded = user(text(SUMMARY), text("Go on.", marked=True))
        assert (await turn(folded))[0] == AGENT

        assert await session.list_threads() == {"t", "t/a7"}
        assert (await session.load("t/a7")).count == 2
        # it names the thread and is no message (docs/contributing/behaviour.md#side-requests)
        assert (await session.load("t")).title == "Plans of van 7"
        stored = "\n".join(before + await session.read_texts("t"))
        assert PLAN + LOOK in stored
        assert SUMMARY in stored
        assert not [words for words in (TITLE, ASIDE, COMPACT, "Plans of van 7") if words in stored]


# ── the Responses API ─────────────────────────────────────────────────────────────────────────────


def item(role: str, *texts: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "role": role,
        "content": [{"type": kind, "text": words} for words in texts],
    }


def write_metadata(kind: str) -> Json:
    return {"x_codex_turn_metadata": orjson.dumps({"request_kind": kind}).decode()}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
MEMBERS: Json = {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "s",
    "client_metadata": {"session_id": "s"},
    "tools": [{"type": "function", "name": "Agent", "parameters": {"type": "object"}}],
}


async def test_a_session_by_responses(tmp_path: Path) -> None:
    opening = [
        item("developer", "You work in a terminal."),
        item("user", "<environment_context>bash</environment_context>"),
    ]
    call = {"type": "function_call", "call_id": CALL["id"], **CALL["function"]}
    step = [REASONING, item("assistant", "I let one look."), call]
    result = {"type": "function_call_output", "call_id": CALL["id"], "output": FOUND}
    async with run_with_scripted_models(tmp_path, MEMORY, models=ScriptedServer(SCRIPT)) as running:
        headers = {"authorization": "Bearer sk-a", "originator": "codex_exec", "thread-id": "s"}
        session = Session(running, "responses", headers)

        async def turn(*items: Json, **headers: str) -> tuple[str, Json]:
            told = {**write_metadata("turn"), **headers}
            return await session.ask({**MEMBERS, "input": [*opening, *items]}, **told)

        asked = item("user", PLAN + LOOK)
        assert (await turn(asked, **write_metadata("prewarm")))[0] == SIDE
        assert (await turn(item("user", TITLE), **write_metadata("title")))[0] == SIDE
        assert await session.list_threads() == set()
        receipt, reply = await turn(asked)
        assert (receipt, reply["content"]) == (AGENT, "I let one look.")
        sub_agent = item("user", LOOK)
        receipt, _ = await turn(sub_agent, x_codex_parent_thread_id="s", thread_id="a7")
        assert receipt == AGENT
        receipt, done = await turn(asked, *step, result)
        assert receipt == AGENT
        before = await session.read_texts("t")
        said = item("assistant", done["content"])
        known = [asked, *step, result, said]
        for side in ({"x_openai_memgen_request": "true"}, {"x_codex_guardian": "true"}):
            assert (await turn(*known, item("user", ASIDE), **side))[0] == SIDE
        trigger = {"type": "compaction_trigger"}
        assert (await turn(*known, trigger, **write_metadata("compaction")))[0] == SIDE
        assert await session.read_texts("t") == before
        assert (await turn(*known, item("user", f"{PLAN}Go on.")))[0] == AGENT
        assert (await session.load("t")).chunks, "it is observed, all the same"
        compacted = {"type": "compaction", "encrypted_content": "ZW5j"}
        assert (await turn(asked, compacted, item("user", "Go on.")))[0] == AGENT

        assert await session.list_threads() == {"t", "t/a7"}
        assert (await session.load("t/a7")).count == 3
        stored = "\n".join(before + await session.read_texts("t"))
        assert PLAN + LOOK in stored
        assert not [words for words in (TITLE, ASIDE, "Plans of van 7") if words in stored]
