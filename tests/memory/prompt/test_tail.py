"""The part of the tail that the actor is sent."""

from __future__ import annotations

import pytest

from om_proxy.memory.prompt.tail import Piece
from tests.memory.clients import (
    Thread,
    build_covered_thread,
    build_thread,
    chat,
    forwarded_words,
)

LONG = "u1 a1 u2 a2 u3 a3"


def ask(thread: Thread, words: str) -> tuple[Piece, ...]:
    return thread.ask(chat(words))[2]


@pytest.mark.parametrize(
    ("thread", "sent", "forwarded"),
    [
        pytest.param(build_thread(LONG), LONG + " u4", LONG + " u4", id="nothing covered: as sent"),
        pytest.param(
            build_covered_thread(LONG, 4), LONG + " u4", "u3 a3 u4", id="covered is skipped"
        ),
        pytest.param(
            build_thread(LONG),
            "a3 u4",
            "[u1] [a1] [u2] [a2] [u3] a3 u4",
            id="what a window lacks is ours",
        ),
        pytest.param(
            build_covered_thread(LONG, 2), "a3 u4", "[u2] [a2] [u3] a3 u4", id="from coverage on"
        ),
        pytest.param(
            build_covered_thread(LONG, 2), "u4", "[u2] [a2] [u3] [a3] u4", id="a lone message"
        ),
        pytest.param(
            build_covered_thread(LONG, 2),
            "usum u3 a3 u4",
            "usum [u2] [a2] u3 a3 u4",
            id="an unknown head goes first",
        ),
        pytest.param(
            build_thread("u1 cx rx a1"), "u1 a1 u2", "u1 a1 u2", id="folded: the client's view"
        ),
        pytest.param(
            build_covered_thread("u1 cx rx cy ry a1", 3),
            "u1 a1 u2",
            "[cy] [ry] a1 u2",
            id="coverage inside a fold: ours",
        ),
        pytest.param(
            build_thread(LONG), "u1 a1 u3 a3 u4", "u1 a1 u3 a3 u4", id="a gap is not refilled"
        ),
        pytest.param(
            build_thread("u1 cx rx a1"),
            "u1 cx rx=pruned a1 u2",
            "u1 cx rx a1 u2",
            id="a pruned result is theirs",
        ),
        pytest.param(
            build_covered_thread("u1 u2 a2", 3),
            "u1 sx u2 a2 u3",
            "sx u3",
            id="inserted where all is covered",
        ),
        pytest.param(
            build_covered_thread("u1 a1 u2", 3),
            "u1 a1 u2",
            "u2",
            id="what is asked is never left out",
        ),
        pytest.param(
            build_thread("u1 cx"), "rx", "[u1] [cx] rx", id="a lone result finds its call"
        ),
        pytest.param(
            build_thread("u1 cx u2 a2"), "rx", "[u1] [u2] [a2] [cx] rx", id="others spoke meanwhile"
        ),
        pytest.param(
            build_thread("u1 cx u2 a2 rx a1"),
            "u3",
            "[u1] [u2] [a2] [cx] [rx] [a1] u3",
            id="what others said meanwhile stays before the step",
        ),
        pytest.param(
            build_thread("u1 cx cy rx ry a1"),
            "u2",
            "[u1] [cx] [cy] [rx] [ry] [a1] u2",
            id="neighbouring calls are one step",
        ),
        pytest.param(
            build_thread("u1 cx+y rx u2 a2"),
            "ry",
            "[u1] [u2] [a2] [cx+y] [rx] ry",
            id="the results that came before go with their call",
        ),
        pytest.param(
            build_thread("u1 a1 u2 a2"), "u1 a1", "u1 a1", id="a prefill is the last message"
        ),
        pytest.param(
            build_thread("u1 s0 a1"),
            "u1 a1 u2 s0",
            "u1 a1 u2 s0",
            id="a reminder stands where the client puts it",
        ),
    ],
)
def test_the_tail(thread: Thread, sent: str, forwarded: str) -> None:
    """The client's view where it has one, ours where it has none, in order, the newest message
    last."""
    assert forwarded_words(ask(thread, sent)) == forwarded


def test_a_pruned_result_is_forwarded_in_the_clients_words() -> None:
    """Ours is observed, theirs is sent, and must be counted."""
    pieces = ask(build_thread("u1 cx rx a1"), "u1 cx rx=pruned a1 u2")
    result = next(p for p in pieces if p.answers)
    assert b"pruned" in result.raw
    assert (result.tokens, result.seq) == (None, 3)


def test_known_messages_need_no_counting() -> None:
    """Their count is stored; an unknown head has none."""
    pieces = ask(build_thread(LONG), "usum u3 a3 u4")
    assert [p.tokens for p in pieces] == [None] + [50] * (len(pieces) - 1)
    assert [p.seq for p in pieces] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_fold_that_hides_the_call_leaves_no_orphan_of_ours() -> None:
    """A stored result goes only where its call goes."""
    thread = build_thread("u1 cx rx a1 u2 a2")
    pieces = ask(thread, "rx a1 u2 a2 u3")
    assert forwarded_words(pieces) == "[u1] [cx] rx a1 u2 a2 u3"
