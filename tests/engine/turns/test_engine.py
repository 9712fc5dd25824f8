"""Turns opened and closed: what goes upstream, and what is stored of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import StorageError
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.turn import MissedTurn, PreparedTurn
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller, Mode
from om_proxy.wire.apis.api import Reply, Request
from om_proxy.wire.apis.registry import CHAT
from tests.memory.building import KEY
from tests.support.performing import (
    NOTES,
    SMALL,
    HeldAnswer,
    Parts,
    Step,
    open_parts,
    read_shown_prompt,
)

Message = dict[str, Any]
SYSTEM = {"role": "system", "content": "Be brief."}
LONG = (
    "the van, the dock and the seven crates of apples are all at Quarry Steps today. " * 10
)  # about 180 tokens
SHADOW = SMALL.replace("memory:", "memory:\n  mode: shadow")
UNBUFFERED = SMALL.replace("buffer_tokens: 200", "buffer_tokens: false")


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def make_chat(turns: int, text: str = LONG) -> list[Message]:
    """A history that ends with its newest question."""
    said = [
        m
        for n in range(turns)
        for m in (user(f"question {n}: {text}"), assistant(f"answer {n}: {text}"))
    ]
    return [*said, user("and now?")]


def request(messages: Iterable[Message], instructions: Iterable[Message] = (SYSTEM,)) -> Request:
    body = {"model": "actor", "messages": [*instructions, *messages], "temperature": 0.5}
    return CHAT.parse_request(orjson.dumps(body))


def make_reply(text: str, *, complete: bool = True) -> Reply:
    return Reply(
        message=orjson.dumps(assistant(text)),
        complete=complete,
        finish_reason="stop" if complete else None,
    )


@dataclass
class Turns:
    """An engine, and the parts it works with."""

    parts: Parts
    engine: Engine

    async def open(
        self, messages: list[Message], mode: Mode = "on", hints: Hints = Hints()
    ) -> PreparedTurn:
        return await self.engine.open_turn(
            Caller(KEY, KEY.tenant, mode), request(messages), self.parts.context(), hints
        )

    async def turn(self, messages: list[Message], reply: str, mode: Mode = "on") -> PreparedTurn:
        opened = await self.open(messages, mode)
        await self.engine.close_turn(opened, make_reply(reply))
        return opened

    async def history(self, turns: int, text: str = LONG) -> list[Message]:
        """A client that sends its whole history, up to its next question; what memory does
        meanwhile is waited for."""
        sent: list[Message] = []
        for number in range(turns):
            sent.append(user(f"question {number}: {text}"))
            await self.turn(sent, f"answer {number}: {text}")
            sent.append(assistant(f"answer {number}: {text}"))
            await self.parts.background.wait_idle()
        return [*sent, user("and now?")]

    async def live(self) -> list[str]:
        """The transcript as stored, from the first message on."""
        memory = await self.parts.memory()
        stored = await self.parts.store.messages(KEY, 0)
        assert memory.count == len(stored)
        return [orjson.loads(m.item.raw)["content"] for m in stored]


@asynccontextmanager
async def open_turns(*steps: Step, settings: str = SMALL) -> AsyncIterator[Turns]:
    async with open_parts(*steps, settings=settings) as p:
        yield Turns(
            p,
            Engine(
                p.memories, p.background, BlockRenderer(), TokenCounter(), b"s" * 32, clock=p.clock
            ),
        )


def read_forwarded(turn: PreparedTurn) -> list[Message]:
    assert turn.body is not None
    messages: list[Message] = orjson.loads(turn.body)["messages"]
    return messages


def texts(messages: Iterable[Message]) -> list[str]:
    return [str(m["content"]) for m in messages]


# ── the plain course ──────────────────────────────────────────────────────────────────────────────


async def test_a_first_turn() -> None:
    """The client's bytes go upstream as they came; with the reply, question and answer are
    stored."""
    async with open_turns() as t:
        opened = await t.open([user("hello")])
        assert (opened.status, opened.reason, opened.body) == ("raw", None, None)
        assert await t.live() == []
        await t.engine.close_turn(opened, make_reply("hi"))
        assert await t.live() == ["hello", "hi"]
        memory = await t.parts.memory()
        assert (memory.turns, memory.turn_at, memory.model) == (1, t.parts.clock.now, "actor")


async def test_the_conversation_goes_on() -> None:
    """Only the new messages of a whole history are stored, in order; instructions never are."""
    async with open_turns() as t:
        history = [user("a"), assistant("b"), user("c")]
        await t.turn(history[:1], "b")
        opened = await t.turn(history, "d")
        assert opened.opened.reconciled.verdict.case == "extend"
        assert await t.live() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "turns_before", [0, 1, 4], ids=["its first turn", "its second turn", "a long thread"]
)
@pytest.mark.parametrize("complete", [True, False], ids=["answered", "broken off"])
async def test_a_turn_under_way_does_not_bring_its_thread_back(
    turns_before: int, complete: bool
) -> None:
    """Nothing of it is written; the receipt stands, and what begins afterwards is a thread of its
    own."""
    async with open_turns() as t:
        sent = await t.history(turns_before)
        opened = await t.open(sent)
        receipt = dict(opened.receipt)
        await t.parts.memories.forget(KEY)
        with capture_logs() as logs:
            await t.engine.close_turn(opened, make_reply("too late", complete=complete))
            await t.engine.store_unanswered(opened)
        assert [entry["event"] for entry in logs] == ["memory.forgotten_meanwhile"] * 2
        assert await t.parts.memory() == Memory(key=KEY)
        assert opened.receipt == receipt
        await t.turn([user("hello again")], "hi")
        assert await t.live() == ["hello again", "hi"]


async def test_a_branch_that_is_forgotten_while_it_is_gone_back_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory is read, and its thread forgotten before the old messages are. Nothing of the turn
    is stored; what begins afterwards is a thread of its own."""
    async with open_turns() as t:
        history = [user("a"), assistant("b"), user("c")]
        await t.turn(history[:1], "b")
        await t.turn(history, "d")
        await t.turn([*history[:2], user("edited")], "e")
        read = t.parts.store.messages_by_seq

        async def forget_first(*arguments: Any) -> Any:
            monkeypatch.undo()
            await t.parts.memories.forget(KEY)
            return await read(*arguments)

        monkeypatch.setattr(t.parts.store, "messages_by_seq", forget_first)
        await t.turn([*history, assistant("d"), user("f")], "g")
        assert await t.live() == []
        await t.turn([user("hello again")], "hi")
        assert await t.live() == ["hello again", "hi"]


async def test_a_turn_under_way_stays_out_of_the_thread_that_follows() -> None:
    """Its client may have begun anew before the old reply came."""
    async with open_turns() as t:
        opened = await t.open(await t.history(2))
        await t.parts.memories.forget(KEY)
        await t.turn([user("hello again")], "hi")
        await t.engine.close_turn(opened, make_reply("too late"))
        assert await t.live() == ["hello again", "hi"]


async def test_a_thread_that_another_process_has_forgotten() -> None:
    """The store alone says so: the row it stood on is gone, or another stands in its place."""
    async with open_turns() as t:
        history = await t.history(2)
        opened, other = await t.open(history), await t.open(history)
        await t.parts.store.forget(KEY)
        await t.engine.close_turn(opened, make_reply("too late"))
        assert await t.parts.memory() == Memory(key=KEY)
        await t.turn([user("hello again")], "hi")
        await t.engine.close_turn(other, make_reply("too late"))
        assert await t.live() == ["hello again", "hi"]


async def test_a_turn_without_memory_whose_thread_is_forgotten_while_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its memory could not be read when it came. Another process forgets the thread in between any
    two questions to the store: nothing of it begins a new thread."""
    for asked_first in ("events", "refresh"):
        async with open_turns() as t:
            await t.turn([user("hello")], "hi")
            t.parts.memories.held.drop(KEY)
            came_at = t.parts.clock.now
            ask = getattr(t.parts.store, asked_first)

            async def forget_then(*arguments: Any, ask: Any = ask, t: Turns = t) -> Any:
                answer = await ask(*arguments)
                monkeypatch.undo()
                gone = t.parts.memories._describe_forgotten(KEY)
                await t.parts.store.forget(KEY, None, gone)
                return answer

            monkeypatch.setattr(t.parts.store, asked_first, forget_then)
            sent = [user("hello"), assistant("hi"), user("and now?")]
            await t.engine.close_missed(make_missed(t, sent, "too late", came_at))
            assert await t.live() == []


def make_missed(
    t: Turns, sent: list[Message], reply: str, came_at: float, *, ended_at: float | None = None
) -> MissedTurn:
    """Return a turn that ends now, or at `ended_at`."""
    caller = Caller(KEY, KEY.tenant, "on")
    return MissedTurn(
        caller,
        lambda secret: caller,
        request(sent),
        t.parts.context(),
        Hints(),
        came_at,
        make_reply(reply),
        t.parts.clock.now if ended_at is None else ended_at,
        was_delivered=lambda: True,
    )


async def close_missed(
    t: Turns,
    text: str,
    reply: str,
    came_at: float,
    *,
    again: bool,
    ended_at: float | None = None,
) -> None:
    missed = make_missed(t, [user(text)], reply, came_at, ended_at=ended_at)
    missed.is_commit_begun = again
    await t.engine.close_missed(missed)


@pytest.mark.parametrize("between", [0, 1, 9])
@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_turn_without_memory_that_is_stored_already(is_whole: bool, between: int) -> None:
    """Its message was stored ahead of its reply, or its commit was cut and written all the same.
    Others have spoken since, even so often that its request is no longer recorded: it stands
    once."""
    async with open_turns() as t:
        for word in ("a", "b"):
            await t.turn([user(word)], f"reply to {word}")
        came_at = t.parts.clock.now
        if is_whole:
            await close_missed(t, "mine", "its reply", came_at, again=False)
        else:
            opened = await t.open([user("mine")])
            assert opened.opened.asked_at == came_at
            await t.engine.committer.store_unanswered(opened.opened)
        for number in range(between):
            t.parts.clock.now += 1
            await t.turn([user(f"other {number}")], f"reply to {number}")
        for _ in range(2):  # the second try may be cut, too
            await close_missed(t, "mine", "its reply", came_at, again=True)
            live = await t.live()
            assert [live.count(text) for text in ("mine", "its reply")] == [1, 1]
        assert len(live) == 2 * (3 + between)
        # the same words of a later request are another turn
        t.parts.clock.now += 1
        await close_missed(t, "mine", "another", t.parts.clock.now, again=False)
        assert (await t.live())[-2:] == ["mine", "another"]


async def test_a_turn_without_memory_is_dated_by_its_end() -> None:
    """It is stored an hour later, behind what others said meanwhile: notes tell when it was said,
    and the thread's last turn is the others'."""
    async with open_turns() as t:
        for word in ("a", "b"):
            await t.turn([user(word)], f"reply to {word}")
        came_at = t.parts.clock.now
        t.parts.clock.now += 3_600
        await t.turn([user("other")], "reply to other")
        await close_missed(t, "mine", "its reply", came_at, again=False, ended_at=came_at + 2)
        memory = await t.parts.memories.load(KEY)
        assert [m.at - came_at for m in memory.tail[-4:]] == [3_600, 3_600, 2, 2]
        assert memory.turn_at == came_at + 3_600


async def test_a_client_says_the_same_twice_while_the_store_is_away() -> None:
    """Both replies are equal, and the first turn is stored after the second request came."""
    async with open_turns() as t:
        for word in ("a", "b"):
            await t.turn([user(word)], f"reply to {word}")
        first_at, second_at = t.parts.clock.now + 1, t.parts.clock.now + 2
        t.parts.clock.now += 9
        await close_missed(t, "go on", "done", first_at, again=False)
        for _ in range(2):  # its first commit was cut before anything was written; the next is too
            await close_missed(t, "go on", "done", second_at, again=True)
            assert (await t.live())[4:] == ["go on", "done"] * 2


@pytest.mark.parametrize(
    ("method", "is_sent"), [("refresh", False), ("events", False), ("commit", True)]
)
async def test_when_a_turn_without_memory_may_be_stored(
    monkeypatch: pytest.MonkeyPatch, method: str, is_sent: bool
) -> None:
    """Only once it was sent to the store."""
    async with open_turns() as t:
        await t.turn([user("hello")], "hi")
        t.parts.memories.held.drop(KEY)
        monkeypatch.setattr(t.parts.store, method, AsyncMock(side_effect=StorageError("gone")))
        missed = make_missed(t, [user("mine")], "its reply", t.parts.clock.now)
        with pytest.raises(StorageError):
            await t.engine.close_missed(missed)
        assert missed.is_commit_begun is is_sent


async def test_a_turn_without_memory_that_is_handed_over_while_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next store gets it with times by its own clock. What is stored here has those by this
    one's."""
    async with open_turns() as t:
        await t.turn([user("hello")], "hi")
        came_at = t.parts.clock.now + 1
        t.parts.clock.now += 9
        t.parts.memories.held.drop(KEY)
        missed = make_missed(t, [user("mine")], "its reply", came_at, ended_at=came_at + 2)
        t.engine.defer_missed(missed)
        successor: Any = SimpleNamespace(_secret=b"", defer_missed=lambda _: None)
        refresh = t.parts.store.refresh

        async def hand_over_first(*args: Any) -> Any:
            t.engine.hand_over(successor, 5.0)
            return await refresh(*args)

        monkeypatch.setattr(t.parts.store, "refresh", hand_over_first)
        await t.engine.close_missed(missed)
        assert (missed.came_at, missed.ended_at) == (came_at + 5, came_at + 7)
        messages = await t.parts.store.messages(KEY, 0)
        assert [m.at - came_at for m in messages[-2:]] == [2, 2]


async def test_a_turn_is_dropped_only_if_the_store_says_that_its_thread_is_gone() -> None:
    """What the process holds may be older than the turn: a read that began before the thread did."""
    async with open_turns() as t:
        history = await t.history(2)
        opened = await t.open(history)
        t.parts.memories.held.drop(KEY)
        t.parts.memories.held.put(Memory(key=KEY))
        await t.engine.close_turn(opened, make_reply("in time"))
        assert (await t.live())[-2:] == ["and now?", "in time"]


async def test_a_thread_that_could_not_be_forgotten_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller was told that forgetting failed: a turn under way is stored as any other."""
    async with open_turns() as t:
        opened = await t.open([user("hello")])

        async def fail(_: Key) -> int:
            raise StorageError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(t.parts.store, "version", fail)
            with pytest.raises(StorageError):
                await t.parts.memories.forget(KEY)
        await t.engine.close_turn(opened, make_reply("hi"))
        assert await t.live() == ["hello", "hi"]


async def test_a_turn_that_waits_while_its_thread_is_forgotten() -> None:
    """It goes on with what its client sent: nothing of what was forgotten is told to the model, and
    nothing is stored."""
    held = HeldAnswer()
    async with open_turns(*[NOTES] * 9, settings=UNBUFFERED) as t:
        sent = make_chat(3)
        await t.turn(sent[:1], "ok")
        t.parts.models.steps[:] = [held]
        opening = asyncio.create_task(t.open(make_chat(12)))
        await held.asked.wait()
        await t.parts.memories.forget(KEY)
        held.go.set()
        opened = await opening
        assert (opened.status, opened.body) == ("raw", None)
        await t.engine.close_turn(opened, make_reply("too late"))
        await t.parts.background.wait_idle()
        assert await t.parts.memory() == Memory(key=KEY)


async def test_the_receipt_counts() -> None:
    """Tokens as the client sent them and as they go on, and the state of the memory."""
    async with open_turns() as t:
        opened = await t.open([user("hello")])
        assert opened.receipt["tokens-received"] == opened.receipt["tokens-sent"]
        assert opened.receipt["pending-tokens"] == 5  # a word and its framing
        history = await t.history(3)
        applied = await t.open(history)
        assert int(applied.receipt["tokens-sent"]) < int(applied.receipt["tokens-received"])
        assert applied.receipt["chunks"] == len((await t.parts.memory()).chunks)


async def test_a_retry_writes_nothing() -> None:
    """The very same request with the very same reply leaves the store as it is."""
    async with open_turns() as t:
        await t.turn([user("a")], "b")
        version = await t.parts.store.version(KEY)
        opened = await t.turn([user("a")], "b")
        assert opened.opened.reconciled.verdict.case == "retry"
        assert await t.parts.store.version(KEY) == version


async def test_nothing_to_close() -> None:
    """Only a retry with the very reply that is stored has nothing to close, and only if no other
    turn committed since."""
    async with open_turns() as t:
        first = await t.open([user("a")])
        assert not t.engine.close_repeated(first, make_reply("b"))  # nothing stands there
        await t.engine.close_turn(first, make_reply("b"))
        again = await t.open([user("a")])
        assert t.engine.close_repeated(again, make_reply("b")) == 2
        assert not t.engine.close_repeated(again, make_reply("another"))
        assert not t.engine.close_repeated(again, make_reply("b", complete=False))
        more = await t.open([user("a"), assistant("b"), user("c")])
        assert not t.engine.close_repeated(more, make_reply("b"))  # the same words, elsewhere
        await t.engine.close_turn(more, make_reply("d"))
        assert not t.engine.close_repeated(again, make_reply("b"))  # the thread has gone on


async def test_another_reply_to_the_same_request() -> None:
    """Regenerated: the later answer stands, the earlier one is kept but no longer live."""
    async with open_turns() as t:
        await t.turn([user("a")], "b")
        await t.turn([user("a")], "another b")
        assert await t.live() == ["a", "another b"]
        outline = await t.parts.store.outline(KEY)
        assert [mark.role for mark, _ in outline.superseded] == ["assistant"]


async def test_an_interrupted_reply_is_set_aside() -> None:
    """An interrupted reply is kept but not live; the question stays unanswered."""
    async with open_turns() as t:
        opened = await t.open([user("a")])
        await t.engine.close_turn(opened, make_reply("half an ans", complete=False))
        assert await t.live() == ["a"]
        ((mark, parent),) = (await t.parts.store.outline(KEY)).superseded
        assert (mark.role, parent) == ("assistant", 1)
        await t.turn([user("a")], "an answer")
        assert await t.live() == ["a", "an answer"]


async def test_an_interrupted_reply_that_the_client_sends_back() -> None:
    """A client that kept the half reply makes it part of the conversation."""
    async with open_turns() as t:
        opened = await t.open([user("a")])
        await t.engine.close_turn(opened, make_reply("half an ans", complete=False))
        await t.turn([user("a"), assistant("half an ans"), user("go on")], "wer")
        assert await t.live() == ["a", "half an ans", "go on", "wer"]


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reply", [None, Reply(error=True)], ids=["nothing", "an error"])
async def test_a_reply_that_says_nothing(reply: Reply | None) -> None:
    """The client's message is kept as unanswered."""
    async with open_turns() as t:
        opened = await t.open([user("a")])
        await t.engine.close_turn(opened, reply)
        assert await t.live() == ["a"]


async def test_an_unreachable_upstream_keeps_the_question() -> None:
    """It is answered when the client tries again, and stored once."""
    async with open_turns() as t:
        await t.engine.store_unanswered(await t.open([user("a")]))
        assert await t.live() == ["a"]
        await t.turn([user("a")], "b")
        assert await t.live() == ["a", "b"]


@pytest.mark.parametrize(
    "reply", [None, make_reply("half", complete=False)], ids=["no reply", "half a reply"]
)
async def test_a_fork_that_fails_leaves_nothing(reply: Reply | None) -> None:
    """An edit supersedes messages only with its complete reply."""
    async with open_turns() as t:
        history = await t.history(2, "short")
        edited = [user("question 0: edited")]
        opened = await t.open(edited, hints=Hints("full"))
        assert opened.opened.reconciled.verdict.cut_seq == 0
        await t.engine.close_turn(opened, reply)
        await t.engine.store_unanswered(opened)
        assert await t.live() == texts(history[:-1])
        await t.engine.close_turn(opened, make_reply("edited"))
        assert await t.live() == ["question 0: edited", "edited"]


# ── modes ─────────────────────────────────────────────────────────────────────────────────────────


async def test_read_stores_nothing() -> None:
    """`read`: the memory is shown, and nothing of the turn is kept."""
    async with open_turns() as t:
        history = await t.history(4)
        await t.turn(history, "now")
        await t.parts.background.wait_idle()
        assert (await t.parts.memory()).log.entries
        before = await t.parts.memory()
        opened = await t.turn(
            [*history, assistant("now"), user("secretly?")], "never stored", mode="read"
        )
        assert opened.status == "applied"
        assert await t.parts.memory() == before
        assert "secretly?" not in await t.live()


async def test_write_injects_nothing() -> None:
    """`write`: the turn is stored and observed, the client's bytes go upstream."""
    async with open_turns() as t:
        history = await t.history(4)
        opened = await t.turn(history, "now", mode="write")
        assert (opened.status, opened.reason, opened.body) == ("raw", "write-only", None)
        assert (await t.live())[-1] == "now"
        assert (await t.parts.memory()).log.entries, "what is due is done"


async def test_shadow_is_write_for_all() -> None:
    """`memory.mode: shadow` observes and stores, and sends prompts on unchanged."""
    async with open_turns(settings=SHADOW) as t:
        opened = await t.open(await t.history(4))
        assert (opened.reason, opened.body) == ("write-only", None)
        assert (await t.parts.memory()).log.entries


# ── memory follows the branch ─────────────────────────────────────────────────────────────────────


async def test_an_edit_behind_coverage_takes_the_notes_back() -> None:
    """Notes about messages that the client took back leave the log; the uncovered messages are raw
    again."""
    async with open_turns(*[NOTES.replace("2.85 m", f"2.85 m, note {n}") for n in range(9)]) as t:
        history = await t.history(4)
        await t.turn(history, "now")
        await t.parts.background.wait_idle()
        before = await t.parts.memory()
        assert before.coverage >= 4
        edited = [*history[:2], user("question 1: edited")]
        opened = await t.open(edited)
        assert opened.opened.reconciled.verdict.case == "edit"
        await t.engine.close_turn(opened, make_reply("answer to the edit"))
        after = await t.parts.memory()
        assert await t.live() == [*texts(edited), "answer to the edit"]
        assert after.coverage <= 2
        assert after.log.generation > before.log.generation


async def test_the_abandoned_branch_can_be_gone_back_to() -> None:
    """Nothing superseded is lost: sent again, it is live again."""
    async with open_turns() as t:
        history = [user("a"), assistant("b"), user("c")]
        await t.turn(history[:1], "b")
        await t.turn(history, "d")
        await t.turn([*history[:2], user("edited")], "e")
        assert await t.live() == ["a", "b", "edited", "e"]
        await t.turn([*history, assistant("d"), user("f")], "g")
        assert await t.live() == ["a", "b", "c", "d", "f", "g"]
        assert replace(await t.parts.memory(), version=0).count == 6


# ── several choices ───────────────────────────────────────────────────────────────────────────────


def make_choices(*texts: str) -> Reply:
    first, *others = (orjson.dumps(assistant(text)) for text in texts)
    return Reply(message=first, complete=True, finish_reason="stop", others=tuple(others))


async def choose(t: Turns, sent: list[Message], *choices: str, thin: bool = False) -> None:
    """A turn whose reply has these choices, and what memory does after it."""
    opened = await t.open(sent[-1:] if thin else sent)
    await t.engine.close_turn(opened, make_choices(*choices))
    await t.parts.background.wait_idle()


async def test_the_choice_that_the_client_kept_is_the_reply() -> None:
    """No choice is noted before the client shows which one it kept: that one is stored, in every
    prompt and in the notes."""
    async with open_turns() as t:
        sent: list[Message] = []
        for n in range(4):
            sent.append(user(f"question {n}: {LONG}"))
            kept = f"kept {n}: {LONG}"
            await choose(t, sent, f"dropped {n}: {LONG}", f"dropped too {n}: {LONG}", kept)
            sent.append(assistant(kept))
        await t.turn([*sent, user("and now?")], "done")
        live = await t.live()
        assert live == [*texts(sent), "and now?", "done"]
        asked = [read_shown_prompt(t.parts, n) for n in range(len(t.parts.models.asked))]
        assert asked
        assert "dropped" not in "".join(asked)
        assert (await t.parts.memory()).chunked_to


async def test_a_client_that_shows_no_choice_keeps_the_first() -> None:
    """Its next message stands behind that one, which may then be noted."""
    async with open_turns() as t:
        sent: list[Message] = []
        for n in range(4):
            sent.append(user(f"question {n}: {LONG}"))
            await choose(t, sent, f"first {n}: {LONG}", f"second {n}: {LONG}", thin=True)
            sent.append(assistant(f"first {n}: {LONG}"))
        assert await t.live() == texts(sent)
        assert (await t.parts.memory()).chunked_to >= 4


async def test_a_choice_that_calls_a_tool() -> None:
    """It takes the place of a choice that did not."""
    async with open_turns() as t:
        await choose(t, [user("look")], "no tool", "another")
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        chosen = {"role": "assistant", "content": "with a tool", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c", "content": "found"}
        await t.turn([user("look"), chosen, result], "done")
        assert await t.live() == ["look", "with a tool", "found", "done"]
