"""Turns that fail, break off or overlap, through the wire: what was said is kept once, and half a
branch takes nothing back."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.playing import CUT, FAILED, Model, Play, Turn, read_deltas

pytestmark = pytest.mark.asyncio(
    loop_scope="module"
)  # one proxy for all, each with a thread of its own

LONG = "u1 a1 u2 a2 u3 a3"


# ── upstreams that fail ───────────────────────────────────────────────────────────────────────────


async def test_a_failed_turn_is_retried(play: Play) -> None:
    """What the client said is kept once, unanswered, and its retry brings the reply to the same
    place."""
    await play.play_turns("u1 a1")
    for _ in range(2):
        failed = await play.turn("u1 a1 u2", FAILED)
        assert (failed.status, failed.answer, failed.exact) == (500, None, True)
        assert await play.live() == "u1 a1 u2"
    turn = await play.turn("u1 a1 u2")
    assert (turn.case, turn.answer, await play.live()) == ("retry", "aR", "u1 a1 u2 aR")
    assert await play.count_superseded() == 0


@pytest.mark.parametrize(
    "sent", ["u1 a1 u9", "u1 a1 u2", "a1 u2 a2 u9"], ids=["edit", "rewind", "trimmed edit"]
)
async def test_a_failed_fork_leaves_nothing(play: Play, sent: str) -> None:
    """The branch the client left stands until the reply to the new one is complete; then a retry
    takes it back."""
    await play.play_turns(LONG)
    before = await play.memory()
    assert (await play.turn(sent, FAILED)).status == 500
    after = await play.memory()
    assert (await play.live(), after.version, after.views) == (LONG, before.version, before.views)
    await play.turn(sent)
    assert await play.live() == ("u1 a1 u2 a2 u9 aR" if sent[0] == "a" else sent + " aR")


@pytest.mark.parametrize(
    "play", [True], ids=["stream"], indirect=True
)  # of a whole answer, half is no text to send back
async def test_a_broken_reply_that_the_client_sends_back(play: Play) -> None:
    """What arrived is no part of the transcript, until the client says it is."""
    await play.play_turns("u1 a1")
    turn = await play.turn("u1 a1 u2", "a" + "broken" * 12 + CUT)
    assert (turn.status, turn.answer, await play.live()) == (200, None, "u1 a1 u2")
    half = "a" + "".join(delta.get("content") or "" for delta in read_deltas(turn.arrived))
    assert 1 < len(half) < len("a" + "broken" * 12)
    assert await play.count_superseded() == 1
    turn = await play.turn(f"u1 a1 u2 {half} u3")
    assert (turn.exact, await play.live()) == (True, f"u1 a1 u2 {half} u3 aR")


async def test_a_broken_reply_that_the_client_forgets(play: Play) -> None:
    """A question asked again is answered at its place, and one that goes on leaves the broken reply
    out."""
    await play.play_turns("u1 a1")
    await play.turn("u1 a1 u2", "a" + "broken" * 12 + CUT)
    turn = await play.turn("u1 a1 u2 u3", "a3")
    assert (turn.exact, await play.live()) == (True, "u1 a1 u2 u3 a3")
    await play.turn("u1 a1 u2 u3 a3 u4", "a" + "broken" * 12 + CUT)
    turn = await play.turn("u1 a1 u2 u3 a3 u4")
    assert (turn.case, await play.live()) == ("retry", "u1 a1 u2 u3 a3 u4 aR")


async def test_a_broken_reply_to_a_fork_leaves_the_old_branch(play: Play) -> None:
    """Half an answer supersedes nothing."""
    await play.play_turns(LONG)
    await play.turn("u1 a1 u9", "a" + "broken" * 12 + CUT)
    assert await play.live() == LONG


# ── requests at the same time ─────────────────────────────────────────────────────────────────────


async def at_once(play: Play, *asked: tuple[str, str]) -> list[Turn]:
    """Requests on one thread that the model server answers only when all of them are there."""
    models = play.running.models
    assert isinstance(models, Model)
    models.together = asyncio.Barrier(len(asked))
    try:
        return await asyncio.gather(*(play.turn(sent, reply) for sent, reply in asked))
    finally:
        models.together = None


async def test_thin_clients_at_once(play: Play) -> None:
    """Of eight messages sent at the same time each is stored once, with its own reply behind it."""
    await play.play_turns("u1 > a1; u2 > a2")
    asked = [(f"uq{n}", f"aq{n}") for n in range(8)]
    turns = await at_once(play, *asked)
    assert [turn.answer for turn in turns] == [reply for _, reply in asked]
    words = (await play.live()).split()
    assert words[:4] == ["u1", "a1", "u2", "a2"]
    assert sorted(zip(words[4::2], words[5::2], strict=True)) == asked


async def test_the_same_request_twice_at_once(play: Play) -> None:
    """A hedged request is one turn: of its two replies the later one stands."""
    await play.play_turns("u1 a1")
    turns = await at_once(play, ("u1 a1 u2", "aR"), ("u1 a1 u2", "aR"))
    assert [turn.answer for turn in turns] == ["aR", "aR"]
    assert await play.live() == "u1 a1 u2 aR"


async def test_two_devices_at_once(play: Play) -> None:
    """Two ways to go on from the same history: neither has seen the other's message, so neither
    takes it back."""
    await play.play_turns("u1 a1")
    await at_once(play, ("u1 a1 ux", "ax"), ("u1 a1 uy", "ay"))
    assert await play.live() in ("u1 a1 ux ax uy ay", "u1 a1 uy ay ux ax")


async def test_a_fork_and_an_extension_at_once(play: Play) -> None:
    """If the fork commits first, the other device switches back and the fork stays stored; if last,
    it takes back nothing unseen."""
    await play.play_turns(LONG)
    await at_once(play, (LONG + " u4", "a4"), ("u1 a1 u9", "a9"))
    found = await play.live(), await play.count_superseded()
    assert found in ((LONG + " u4 a4", 2), (LONG + " u4 a4 u9 a9", 0))
