"""What the simulation has found, each as the smallest case of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.model import Key, Message
from om_proxy.memory.prompt.tail import build_tail
from om_proxy.memory.transcript.rebase_turn import rebase_turn
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.stored_rows import Outline
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.registry import CHAT
from tests.memory.building import KEY
from tests.memory.clients import Thread, parse, raw
from tests.support.performing import SMALL, HeldAnswer, Parts, open_parts


def user(text: str) -> bytes:
    return raw("user", text)


def assistant(text: str) -> bytes:
    return raw("assistant", text)


BASE = [user("u1"), assistant("a1")]


def list_live_texts(thread: Thread) -> list[bytes]:
    return [message.item.raw for message in thread.live()]


def two_tabs() -> tuple[Thread, list[bytes]]:
    """A thread on which two tabs asked at once, u2 before u3, and what the first one sent."""
    thread = Thread()
    thread.turn(BASE[:1], BASE[1])
    first, second = [*BASE, user("u2")], [*BASE, user("u3")]
    rec1, sent1, _ = thread.ask(first)
    rec2, sent2, _ = thread.ask(second)
    thread.close(rec1, sent1, assistant("a2"))
    rebased = rebase_turn(thread.memory, rec2, sent2)
    assert rebased is not None
    thread.close(rebased, sent2, assistant("a3"))
    return thread, first


def test_an_edit_behind_another_tabs_turn() -> None:
    """Two tabs ask at once; the second one's question is edited: the first one's turn stands once,
    and before it."""
    thread, first = two_tabs()
    assert list_live_texts(thread) == [*first, assistant("a2"), user("u3"), assistant("a3")]
    edited = [*BASE, user("u4")]
    verdict, sent, pieces = thread.ask(edited)
    assert [piece.raw for piece in pieces] == [*first, assistant("a2"), user("u4")]
    thread.close(verdict, sent, assistant("a4"))
    assert list_live_texts(thread) == [*first, assistant("a2"), user("u4"), assistant("a4")]


def test_a_reply_to_what_was_stored_unanswered_while_others_went_on() -> None:
    """A question is stored before its reply (it waits for an observation), another client asks
    meanwhile: the reply is kept."""
    thread = Thread()
    thread.turn(BASE[:1], BASE[1])
    thread.turn([user("u2")], None)  # stored ahead of its reply
    rec1, sent1, _ = thread.ask([user("u2")])  # as it stands from then on
    assert rec1.case == "retry"
    thread.turn([user("u3")], assistant("a3"))
    rebased = rebase_turn(thread.memory, rec1, sent1)
    assert rebased is not None
    thread.close(rebased, sent1, assistant("a2"))
    assert [parse(m.item.raw).raw for m in thread.live()].count(assistant("a2")) == 1


def test_a_whole_history_with_the_reply_that_was_overtaken() -> None:
    """Of two replies to one question the other one stands; the client that sends all it holds shows
    which one it has."""
    thread = Thread()
    asked = [*BASE, user("u2")]
    thread.turn(BASE[:1], BASE[1])
    thread.turn(asked, assistant("kept by the client"))
    thread.turn(asked, assistant("came later"), Hints(sdk_retry=True))
    thread.observe(4)
    held = [*asked, assistant("kept by the client"), user("u3")]
    verdict = thread.turn(held, assistant("a3"), Hints(history="full"))
    assert verdict.case == "switch"
    assert list_live_texts(thread) == [*held, assistant("a3")]


def test_a_reply_to_an_earlier_question_is_not_taken_for_this_ones() -> None:
    """Two questions were stored ahead of their replies; the first one's reply stands behind both,
    and the second one's behind it."""
    thread = Thread()
    thread.turn(BASE[:1], BASE[1])
    one, other = [user("u2")], [user("u3")]
    hints = Hints(history="new")
    thread.turn(one, None, hints)
    rec1, sent1, _ = thread.ask(one, hints)
    thread.turn(other, None, hints)
    rec2, sent2, _ = thread.ask(other, hints)
    for verdict, sent, text in ((rec1, sent1, "a2"), (rec2, sent2, "a3")):
        rebased = rebase_turn(thread.memory, verdict, sent)
        assert rebased is not None
        thread.close(rebased, sent, assistant(text))
    assert list_live_texts(thread) == [*BASE, *one, *other, assistant("a2"), assistant("a3")]


def test_what_others_said_meanwhile_stands_before_what_is_asked() -> None:
    """A question stored ahead of its reply, and another client's turn behind it: both are in the
    prompt, and the question is last."""
    thread = Thread()
    thread.turn(BASE[:1], BASE[1])
    verdict, sent, _ = thread.ask([user("u2")])
    thread.turn([user("u2")], None)
    thread.turn([user("u3")], assistant("a3"))
    rebased = rebase_turn(thread.memory, verdict, sent)
    assert rebased is not None
    pieces = build_tail(thread.projected(rebased, sent), sent)
    assert [piece.raw for piece in pieces] == [*BASE, user("u3"), assistant("a3"), user("u2")]


def test_the_other_tab_goes_on_when_only_this_ones_attempt_is_remembered() -> None:
    """The first tab's turn stands right before the second one's question: a request that shows it
    has its place there."""
    thread, first = two_tabs()
    thread.memory = replace(
        thread.memory,
        views=tuple(v for v in thread.memory.views if v.digest != thread.read_sent(first).digest),
    )
    going_on = [*first, assistant("a2"), user("u4")]
    verdict, sent, pieces = thread.ask(going_on)
    assert [piece.raw for piece in pieces] == going_on
    thread.close(verdict, sent, assistant("a4"))
    assert list_live_texts(thread) == [*going_on, assistant("a4")]


# ── with an engine ────────────────────────────────────────────────────────────────────────────────

UNBUFFERED = SMALL.replace("buffer_tokens: 200", "buffer_tokens: false")
LONG = (
    "the van, the dock and the seven crates of apples are all at Quarry Steps today. " * 14
)  # about 250 tokens


def engine(p: Parts) -> Engine:
    return Engine(
        p.memories, p.background, BlockRenderer(), TokenCounter(), b"s" * 32, clock=p.clock
    )


async def open_turn(p: Parts, messages: list[bytes], hints: Hints = Hints()) -> PreparedTurn:
    request = CHAT.parse_request(b'{"model":"actor","messages":[' + b",".join(messages) + b"]}")
    return await engine(p).open_turn(Caller(KEY, KEY.tenant), request, p.context(), hints)


async def answered(p: Parts, turn: PreparedTurn, text: str, *, is_end_unseen: bool = False) -> None:
    await engine(p).close_turn(
        turn,
        Reply(message=assistant(text), complete=True, finish_reason="stop"),
        is_end_unseen=is_end_unseen,
    )


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [orjson.loads(message.item.raw)["content"] for message in messages]


async def test_two_questions_that_wait_for_the_same_observation_are_stored_once() -> None:
    """Each is stored ahead of its reply, and the other one in between is no reason to take it for a
    new one."""
    held = HeldAnswer()
    async with open_parts(held, settings=UNBUFFERED) as p:
        new = Hints(history="new")
        for text in (f"one {LONG}", f"two {LONG}"):
            await answered(p, await open_turn(p, [user(text)], new), f"answer to {text}")
        questions = [
            asyncio.create_task(open_turn(p, [user(text)], new)) for text in ("three", "four")
        ]
        while len((await p.memory()).tail) < 6:  # noqa: ASYNC110 - the store alone knows when both are there
            await asyncio.sleep(0.001)
        held.go.set()
        for question, text in zip(
            [await question for question in questions], ("to three", "to four"), strict=True
        ):
            await answered(p, question, text)
        assert texts(await p.store.messages(KEY, 0))[4:] == ["three", "four", "to three", "to four"]


class Meddled(SqliteStore):
    """Somebody commits right before the outline is read."""

    before_outline: Callable[[], Awaitable[None]] | None = None

    async def outline(self, key: Key) -> Outline:
        if meddle := self.before_outline:
            self.before_outline = None
            await meddle()
        return await super().outline(key)


async def test_a_turn_stored_while_the_outline_is_read() -> None:
    """What is read beside the memory is of its version: else the prompt would lack what was stored
    in between."""
    async with open_parts(opener=Meddled) as p:
        told = list(BASE)
        await answered(p, await open_turn(p, BASE[:1]), "a1")
        await answered(p, await open_turn(p, [*BASE, user("u2")]), "a2")
        await answered(
            p, await open_turn(p, [*BASE, user("u3")]), "a3"
        )  # an edit: there is another branch now
        told += [user("u3"), assistant("a3"), user("u4")]
        earlier = await open_turn(p, told)  # its reply is lost
        assert isinstance(p.store, Meddled)
        p.store.before_outline = lambda: engine(p).store_unanswered(earlier)
        turn = await open_turn(p, [*told, user("u5")])
        assert texts(turn.opened.reconciled.projected.tail) == ["u1", "a1", "u3", "a3", "u4", "u5"]
        await answered(p, turn, "a5")
        assert texts(await p.store.messages(KEY, 0)) == ["u1", "a1", "u3", "a3", "u4", "u5", "a5"]


async def test_an_attempt_that_was_left_takes_nothing_from_the_one_that_overtook_it() -> None:
    """The client left, asked again and has its reply; then the first attempt's end comes, without
    one: the reply stands."""
    async with open_parts() as p:
        await answered(p, await open_turn(p, BASE[:1]), "a1")
        left = await open_turn(p, [*BASE, user("u2")])
        await answered(p, await open_turn(p, [*BASE, user("u2")], Hints(sdk_retry=True)), "a2")
        await engine(p).store_unanswered(left)
        assert texts(await p.store.messages(KEY, 0)) == ["u1", "a1", "u2", "a2"]
        await engine(p).close_turn(left, Reply(message=assistant("a")))  # broken off
        assert texts(await p.store.messages(KEY, 0)) == ["u1", "a1", "u2", "a2"]


async def test_an_answer_that_broke_off_behind_its_last_word_takes_nothing_from_the_one_that_overtook_it() -> (
    None
):
    """All of its text had come, the end had not: its client was told that it failed, asked again,
    and has the other reply."""
    async with open_parts() as p:
        await answered(p, await open_turn(p, BASE[:1]), "a1")
        first = await open_turn(p, [user("u2")])
        await answered(p, await open_turn(p, [user("u2")]), "a2")
        await answered(p, first, "seen by nobody", is_end_unseen=True)
        assert texts(await p.store.messages(KEY, 0)) == ["u1", "a1", "u2", "a2"]
