"""The prompt that goes upstream: notes in place of the oldest messages, a stable prefix, and a tail
that fits."""

from __future__ import annotations

import orjson

from om_proxy.errors import ModelError
from tests.support.performing import SMALL, HeldAnswer
from tests.turns.test_engine import (
    LONG,
    SYSTEM,
    Message,
    assistant,
    make_reply,
    open_turns,
    read_forwarded,
    texts,
    user,
)

LIMITED = SMALL + "context: {tail_limit: 400}\n"


async def test_beyond_the_threshold_notes_stand_for_the_oldest() -> None:
    """Instructions first and unchanged, then what memory holds, then the newest messages byte for
    byte; the rest of the body stays."""
    async with open_turns() as t:
        history = await t.history(4)
        opened = await t.open(history)
        assert (opened.status, opened.reason) == ("applied", None)
        memory = await t.parts.memory()
        assert opened.body is not None
        body = orjson.loads(opened.body)
        assert list(body) == ["model", "messages", "temperature"]
        kept = history[memory.coverage :]
        assert body["messages"][-len(kept) :] == kept
        assert SYSTEM["content"] in body["messages"][0]["content"]
        assert "2.85 m" in orjson.dumps(body["messages"][: -len(kept)]).decode()


async def test_the_prefix_stays_between_activations() -> None:
    """Time alone moves nothing, not even past midnight: the next prompt begins with the bytes of
    the one before."""
    async with open_turns() as t:
        history = await t.history(4)
        before = read_forwarded(await t.turn(history, "now"))
        for number in range(3):  # from 22:13 to 00:43, never an hour without a turn
            t.parts.clock.now += 3_000
            history += [assistant("now"), user(f"next {number}")]
            prompt = read_forwarded(await t.turn(history, "now"))
            assert prompt[: len(before)] == before
            before = prompt


async def test_a_cold_cache_renews_the_date() -> None:
    """The provider's cache is cold after an hour, so dates are rendered anew."""
    async with open_turns() as t:
        history = await t.history(4)
        first = await t.turn(history, "now")
        t.parts.clock.now += 5 * 86_400
        second = await t.open([*history, assistant("now"), user("next")])
        assert read_forwarded(second)[0] != read_forwarded(first)[0]


async def test_tail_limit() -> None:
    """The oldest raw messages are left out of the prompt and nothing else, and the receipt says
    so."""
    async with open_turns(*[HeldAnswer() for _ in range(9)], settings=LIMITED) as t:
        sent: list[Message] = []
        for number in range(3):
            sent += [user(f"question {number}: {LONG}")]
            await t.turn(sent, f"answer {number}: {LONG}")
            sent += [assistant(f"answer {number}: {LONG}")]
        opened = await t.open([*sent[2:], user("window?")])
        assert opened.opened.reconciled.verdict.case == "trimmed"
        assert opened.status == "degraded"
        assert opened.reason == "tail-limit"
        shown = texts(read_forwarded(opened))
        assert shown[-1] == "window?"
        assert sent[0]["content"] not in shown
        assert (await t.live()) == texts(sent)


async def test_tail_limit_while_there_are_no_notes() -> None:
    """Inspection M2: an observer that fails from the first call on must not leave a small window
    with a prompt too long for it."""
    failing = [ModelError("refused") for _ in range(9)]
    async with open_turns(*failing, settings=LIMITED) as t:
        sent: list[Message] = []
        for number in range(3):
            sent += [user(f"question {number}: {LONG}")]
            await t.turn(sent, f"answer {number}: {LONG}")
            await t.parts.background.wait_idle()
            sent += [assistant(f"answer {number}: {LONG}")]
        assert (await t.parts.memory()).log.entries == ()
        opened = await t.open([*sent, user("and now?")])
        assert (opened.status, opened.reason) == ("degraded", "tail-limit")
        instructions, *shown = texts(read_forwarded(opened))
        assert instructions.startswith("Be brief.")
        assert "does not fit and is not shown" in instructions
        assert (shown[-1], sent[0]["content"] in shown) == ("and now?", False)
        assert opened.receipt["tokens-sent"] < opened.receipt["tokens-received"]
        await t.engine.close_turn(opened, make_reply("done"), accepted=True)
        assert await t.live() == [*texts(sent), "and now?", "done"]


async def test_a_tail_within_its_limit_goes_as_it_came() -> None:
    """The client's bytes are left alone until notes exist, and while all of it fits."""
    async with open_turns(settings=LIMITED) as t:
        opened = await t.open([user("hello"), assistant("hi"), user("and now?")])
        assert (opened.status, opened.body) == ("raw", None)
