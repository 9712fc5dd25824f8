"""A week of traffic in shadow and the same week live: the model server gets the same requests, but
for the messages that memory rewrites, and what shadow announces is what live sends.

The made-up week runs everywhere, in both layouts and both scopes: in two ways, and in all four with
`OM_TEST_LONG=all scripts/test tests/e2e/test_shadow_week.py`. So does the recorded week, which needs
the shared data, and takes longer than all made-up ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import pytest

from om_proxy.agents.models import create_encoder
from om_proxy.app.app import App
from om_proxy.engine.turns.prompt_builder import ShadowPrompts
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import Memory
from om_proxy.proof.recorder import Recorder
from om_proxy.proof.scripted_notes import ScriptedNotes
from om_proxy.settings.config import parse
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import OBSERVER, Fault, ScriptedServer
from tests.bench.recordings import coding_session, service_chats
from tests.bench.replaying import Model, Timed
from tests.e2e.replay import SHARED, Message
from tests.e2e.running import Clock
from tests.support.long_forms import IS_LONG, long_form

MONDAY = 1_774_224_000.0  # unix seconds
DAY, HOUR = 86_400.0, 3_600.0
SESSIONS = 21 if IS_LONG else 11
# In shadow no request waits for notes (docs/contributing/seeing.md#shadow-mode). So none does live
# either, not even after a fork that makes much raw again.
SMALL = (
    "observation: {message_tokens: 700, buffer_tokens: 150, block_after: 9}, "
    "reflection: {observation_tokens: 900, block_after: 9}"
)
WHERE = [
    pytest.param("blocks", "thread", id="blocks-thread"),
    pytest.param("merged", "resource", id="merged-resource"),
    pytest.param("blocks", "resource", id="blocks-resource", marks=long_form),
    pytest.param("merged", "thread", id="merged-thread", marks=long_form),
]
# what the two may differ in: the length of the body
REWRITTEN = {b"content-length"}


# ── the traffic ───────────────────────────────────────────────────────────────────────────────────


@dataclass
class Talk:
    """A conversation as its client holds it, told call by call."""

    thread: str
    history: list[Message] = field(default_factory=list)
    count: int = 0

    def say(self, at: float) -> Iterator[Timed]:
        self.count += 1
        self.history.append({"role": "user", "content": self._question()})
        yield self._call(at, {"role": "assistant", "content": self._answer()})

    def use_tool(self, at: float) -> Iterator[Timed]:
        self.count += 1
        self.history.append({"role": "user", "content": self._question()})
        function = {"name": "weigh", "arguments": f'{{"lot": {self.count}}}'}
        call = {"id": f"{self.thread}-{self.count}", "type": "function", "function": function}
        yield self._call(at, {"role": "assistant", "content": None, "tool_calls": [call]})
        result = f"lot {self.count}: {300 + self.count} crates, {self.count}.5 tonnes in total"
        self.history.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        yield self._call(at + 20, {"role": "assistant", "content": self._answer()})

    def say_otherwise(self, back: int, at: float) -> Iterator[Timed]:
        """A question asked anew; what followed it is taken back."""
        users = [n for n, m in enumerate(self.history) if m["role"] == "user"]
        del self.history[users[-min(back, len(users))] :]
        yield from self.say(at)

    def ask_again(self, at: float) -> Iterator[Timed]:
        """The last request once more, with another answer."""
        self.history.pop()
        self.count += 1
        yield self._call(at, {"role": "assistant", "content": self._answer()})

    def _call(self, at: float, reply: Message) -> Timed:
        instructions = {"role": "system", "content": "You keep the books of a packing house."}
        sent = [instructions, *self.history]
        self.history.append(reply)
        return Timed(self.thread, sent, reply, at, at + 12.0)

    def _question(self) -> str:
        n = self.count
        return (
            f"Lot {n} of {self.thread} goes to the north shed, {300 + n} crates at {n}.50 each. "
            f"We press lot {n + 1} in a while. Is shed {n % 5} free for lot {n}, and who signs?"
        )

    def _answer(self) -> str:
        n = self.count
        return (
            f"Shed {n % 5} is free from hour {n % 24} on. Mara signs for lot {n}, after weighing."
        )


def tell_week() -> list[Timed]:
    """Half of it in the short form. Two threads in turn, three sessions a day; tools, questions asked anew near the end and far
    back, and requests that are repeated."""
    calls: list[Timed] = []
    talks = [Talk("north"), Talk("south")]
    for session in range(SESSIONS):
        at = MONDAY + session // 3 * DAY + (8.5 + 5.2 * (session % 3)) * HOUR
        for number in range(6):
            talk, at = talks[number % 2], at + 60.0 * (2 + 7 * number)
            if number == 3:
                calls += talk.use_tool(at)
            elif session % 5 == 2 and number == 4:
                calls += talk.say_otherwise(7 if session % 2 else 1, at)
            elif session % 4 == 1 and number == 5:
                calls += talk.ask_again(at)
            else:
                calls += talk.say(at)
    return calls


def read_recorded_week() -> list[Timed] | None:
    """The recorded coding session on Monday, and the recorded service chats over all seven days;
    None where the shared data is absent."""
    coding, service = SHARED / "coding-session.jsonl", SHARED / "airline-service.jsonl"
    if not (coding.exists() and service.exists()):
        return None
    session, chats = coding_session(coding).calls, service_chats(service, most=8_000)
    moved = [later(call, MONDAY - session[0].asked_at) for call in session]
    step = 7 * DAY / len(chats)
    moved += [
        later(call, MONDAY + number * step - call.asked_at) for number, call in enumerate(chats)
    ]
    return sorted(moved, key=lambda call: call.asked_at)


def later(call: Timed, seconds: float) -> Timed:
    return replace(call, asked_at=call.asked_at + seconds, replied_at=call.replied_at + seconds)


# ── playing it ────────────────────────────────────────────────────────────────────────────────────


class Arrived(NamedTuple):
    """A request as the model server got it."""

    line: tuple[str, bytes, bytes]  # method, path, query
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Upstream(Model):
    """The model server of the traffic. It answers once `gate` is open: so the shadow prompt of a
    request is ready when its answer begins."""

    def __init__(self, calls: Sequence[Timed], clock: Clock, gate: asyncio.Event | None) -> None:
        super().__init__(calls, clock)
        self._gate = gate
        self._heads: list[tuple[tuple[str, bytes, bytes], list[tuple[bytes, bytes]]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        line = (scope["method"], scope["raw_path"], scope["query_string"])
        self._heads.append((line, list(scope["headers"])))
        if self._gate:
            await asyncio.wait_for(self._gate.wait(), 60)
            self._gate.clear()
        await super().__call__(scope, receive, send)

    def arrived(self) -> list[Arrived]:
        bodies = [body for number in sorted(self.bodies) for body in self.bodies[number]]
        return [Arrived(*head, body) for head, body in zip(self._heads, bodies, strict=True)]


class Played(NamedTuple):
    arrived: list[Arrived]
    receipts: list[dict[str, str]]
    bodies: list[bytes]  # as the client sent them
    memories: list[Memory]


async def play(
    folder: Path, calls: Sequence[Timed], notes: Any, memory: str, layout: str, mode: str
) -> Played:
    """Play every call in order, at its time, with all background work done before the next."""
    clock, gate = Clock(), asyncio.Event()
    server = Upstream(calls, clock, gate if mode == "shadow" else None)
    receipts: list[dict[str, str]] = []
    bodies: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        open_when_built(patch, gate)
        pause_alike(patch)
        async with served(folder, server, notes, clock, memory, layout, mode) as (app, client):
            for number, call in enumerate(calls):
                clock.now = call.asked_at
                body = {"temperature": 0.2, "messages": call.sent, "model": "m", "user": "ada"}
                bodies.append(orjson.dumps(body))
                answer = await client.post(
                    "/v1/chat/completions?trace=1",
                    content=bodies[-1],
                    headers={
                        "authorization": "Bearer sk-a",
                        "content-type": "application/json",
                        "x-om-thread": call.thread,
                        "x-om-resource": "house",
                        "x-client": "books/1.2",
                        "x-test-call": str(number),
                    },
                )
                assert answer.status_code == 200, answer.text
                receipts.append(
                    {n[5:]: v for n, v in answer.headers.items() if n.startswith("x-om-")}
                )
                await app.background.wait_idle()
            memories = [await app.store.load(info.key) for info in await app.store.threads(None)]
    return Played(server.arrived(), receipts, bodies, memories)


def open_when_built(patch: pytest.MonkeyPatch, gate: asyncio.Event) -> None:
    build = ShadowPrompts.build

    async def watch(self: ShadowPrompts, opened: Any) -> Any:
        try:
            return await build(self, opened)
        finally:
            gate.set()

    patch.setattr(ShadowPrompts, "build", watch)


def pause_alike(patch: pytest.MonkeyPatch) -> None:
    """Have a thread whose observer failed tried again after the same time in both runs: else the
    jitter lets one of them have its notes a request earlier."""
    record = transitions.record_failure

    def record_without_jitter(memory: Memory, now: float, jitter: float, cause: str = "") -> Memory:
        return record(memory, now, 0.0, cause)

    patch.setattr(transitions, "record_failure", record_without_jitter)


@asynccontextmanager
async def served(
    folder: Path, server: Any, notes: Any, clock: Clock, memory: str, layout: str, mode: str
) -> AsyncIterator[tuple[Any, httpx.AsyncClient]]:
    await asyncio.to_thread(folder.mkdir)
    async with (
        serve_on_loopback(server, lifespan="off") as upstream,
        serve_on_loopback(notes, lifespan="off") as models,
    ):
        settings = parse(
            f"""
            upstream: [{{name: r, match: ["*"], base_url: "{upstream}/v1", layout: {layout}}}]
            storage: {{url: "sqlite:///{folder}/om.db"}}
            memory: {{mode: {mode}, model: openai/scripted-observer, api_base: "{models}/v1",
              api_key: sk-notes, {memory}}}
            models: {{"*": {{reflection: {{model: openai/scripted-reflector}}}}}}
            telemetry: {{log: "off"}}
            # two threads at once would put their notes into a shared log in an order of their own
            background: {{concurrency: 1}}
            """
        )
        await write_secret(folder / "om.db")
        app = App(settings, clock=clock)
        async with (
            serve_on_loopback(app) as base,
            httpx.AsyncClient(base_url=base, trust_env=False, timeout=90) as client,
        ):
            yield app, client


async def write_secret(path: Path) -> None:
    """Threads have the same labels in both runs: prompts name them, and their tokens count."""
    store = await SqliteStore.open(path)
    await store.secret(b"the same in both".ljust(32))
    await store.close()


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────


def compare(shadow: Played, live: Played) -> None:
    assert len(shadow.arrived) == len(live.arrived) == len(shadow.bodies)
    for number, (one, other) in enumerate(zip(shadow.arrived, live.arrived, strict=True)):
        assert one.line == other.line
        assert list_kept(one) == list_kept(other), number
        assert one.body == shadow.bodies[number]  # in shadow, the client's own bytes
        original, rewritten = orjson.loads(one.body), orjson.loads(other.body)
        assert list(original) == list(rewritten)
        assert {**original, "messages": 0} == {**rewritten, "messages": 0}
    announced = [int(receipt["tokens-shadow"]) for receipt in shadow.receipts]
    assert announced == [int(receipt["tokens-sent"]) for receipt in live.receipts]
    received = [receipt["tokens-received"] for receipt in live.receipts]
    assert [receipt["tokens-sent"] for receipt in shadow.receipts] == received
    for one_memory, other_memory in zip(shadow.memories, live.memories, strict=True):
        assert notes_of(one_memory) == notes_of(other_memory)
    full = [memory.ledger.full for memory in shadow.memories]
    assert sum(account.shadow_calls for account in full) == len(shadow.bodies)
    assert sum(account.shadow_sent for account in full) == sum(announced)


def list_kept(request: Arrived) -> list[tuple[bytes, bytes]]:
    """All headers but those that a rewritten body must change, and the address of the server."""
    return [(n, v) for n, v in request.headers if n not in REWRITTEN | {b"host"}]


def notes_of(memory: Memory) -> tuple[Any, ...]:
    texts = [entry.text for entry in (*memory.log.entries, *memory.chunks)]
    return memory.key.thread, memory.coverage, memory.count, memory.log.generation, texts


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "scope"), WHERE)
async def test_a_made_up_week(tmp_path: Path, layout: str, scope: str) -> None:
    """With tools, forks near and far, repeated requests, nights and pauses, and an observer that
    fails at first."""
    calls = tell_week()
    memory = f"scope: {scope}, {SMALL}"
    shadow, live = [
        await play(tmp_path / mode, calls, failing_at_first(), memory, layout, mode)
        for mode in ("shadow", "live")
    ]
    compare(shadow, live)
    rewritten = [
        number
        for number, request in enumerate(live.arrived)
        if orjson.loads(request.body)["messages"] != calls[number].sent
    ]
    assert len(rewritten) > len(calls) // 2
    generations = [int(receipt["generation"]) for receipt in live.receipts]
    assert max(generations) >= 3
    assert "observer-failing" in {receipt.get("reason") for receipt in live.receipts}


def failing_at_first() -> ScriptedServer:
    refusing = Fault(kind="refusal", model=OBSERVER, times=12)
    return ScriptedServer(faults=[refusing])


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "scope"), WHERE)
@long_form
async def test_a_recorded_week(tmp_path: Path, layout: str, scope: str) -> None:
    """A coding session of 439 calls, and forty service chats beside it."""
    calls = read_recorded_week()
    if calls is None:
        pytest.skip("the recorded conversations are not here: ../shared/data")
    memory = (
        f"scope: {scope}, observation: {{message_tokens: 9000, block_after: 9}}, "
        "reflection: {observation_tokens: 12000, block_after: 9}"
    )
    notes = Recorder({"/v1": ScriptedNotes(8.0, create_encoder(""))})
    shadow, live = [
        await play(tmp_path / mode, calls, notes, memory, layout, mode)
        for mode in ("shadow", "live")
    ]
    compare(shadow, live)
    sent = sum(int(receipt["tokens-sent"]) for receipt in live.receipts)
    assert sent < 0.8 * sum(int(receipt["tokens-received"]) for receipt in live.receipts)
