"""The tokens of a prompt, computed from what is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.blocks import find_closed_ends
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Cell, Item, Mark, Memory, View
from om_proxy.memory.prompt import prompt_cost
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.transcript.reconcile import reconcile
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import NeedOutline, StoredTranscript
from tests.memory.building import chat, chunk, memory
from tests.memory.clients import apply_turn
from tests.support.counting import TIMES, count_lines_run


def parsed(raw: bytes) -> Item:
    return Item(raw, "user", hashlib.blake2b(raw, digest_size=16).digest())


def sent_of(count: int, size: int = 400) -> SentHistory:
    return SentHistory.of([b"%03d" % n + b"x" * (size - 3) for n in range(count)], parsed)


def viewed(of: Memory, sent: SentHistory, *cells: Cell) -> Memory:
    view = View(
        count=sent.count,
        digest=sent.digest,
        chain=b"",
        seq=of.end,
        end=of.end,
        asked_at=0.0,
        cells=cells,
    )
    return replace(of, views=(view,))


def piece(
    seq: int,
    tokens: int | None,
    role: str = "user",
    calls: Sequence[str] = (),
    answers: str | None = None,
) -> Piece:
    return Piece(b"x" * 400, role, tuple(calls), answers, tokens, seq, index=0)


def activated(turns_said: int, last: int) -> Memory:
    """Messages of 50 tokens each, those up to `last` covered."""
    of = memory(chat(turns_said, 50))
    observed = transitions.add_chunk(of, chunk(of, last))
    return transitions.activate_chunks(observed, [observed.chunks[0].id], 1.0)


# ── what was received ─────────────────────────────────────────────────────────────────────────────


def test_what_is_stored_is_not_counted_anew() -> None:
    """Known messages cost what is stored with them."""
    of, sent = memory(chat(2, 50)), sent_of(4)
    assert prompt_cost.received_tokens(viewed(of, sent, Cell("same", 0, 4, 1, 4)), sent) == 200


@pytest.mark.parametrize("last", [2, 4, 6])
def test_covered_messages_that_are_sent_count_too(last: int) -> None:
    """The client sent them, whether they go on or not."""
    of, sent = activated(3, last), sent_of(6)
    assert prompt_cost.received_tokens(viewed(of, sent, Cell("same", 0, 6, 1, 6)), sent) == 300


def test_a_window_counts_what_it_shows() -> None:
    """Messages that the client left out are not counted as received."""
    of, sent = activated(3, 4), sent_of(3)
    cells = (Cell("unsent", 0, 0, 1, 3), Cell("same", 0, 3, 4, 6))
    assert prompt_cost.received_tokens(viewed(of, sent, *cells), sent) == 150


def test_what_reaches_back_beyond_the_loaded_marks() -> None:
    """A history longer than the marks that are kept is counted from the memory's totals."""
    of = replace(activated(4, 6), covered_count=1_000, covered_tokens=50_000)
    of = replace(of, recent=of.recent[-2:])
    sent = sent_of(1_002)
    whole = viewed(of, sent, Cell("same", 0, 1_002, 5 - 998, 8))
    assert prompt_cost.received_tokens(whole, sent) == 50_000 + 100
    covered_only = viewed(
        of, sent, Cell("same", 0, 999, 5 - 998, 5), Cell("extra", 999, 1_000, 6, 5)
    )
    assert prompt_cost.received_tokens(covered_only, sent) == 49_950 + 100


@pytest.mark.parametrize("kind", ["extra", "folded"])
def test_what_nobody_has_counted_is_guessed(kind: str) -> None:
    """Four bytes a token, for messages that are not what is stored."""
    of, sent = memory(chat(1, 50)), sent_of(2, size=400)
    assert prompt_cost.received_tokens(viewed(of, sent, Cell(kind, 0, 2, 1, 2)), sent) == 200


def test_nothing_sent() -> None:
    """A request of instructions alone has no history."""
    assert prompt_cost.received_tokens(memory(chat(1, 50)), sent_of(0)) == 0


def test_a_reconciled_turn() -> None:
    """Known messages count at their stored cost, new ones as they were counted just now."""
    of = Memory(key=memory(()).key)
    sent = sent_of(3)
    verdict = reconcile(StoredTranscript.of(of), sent)
    assert not isinstance(verdict, NeedOutline)
    heard = apply_turn(of, verdict, sent, dict.fromkeys(range(3), 10), 1.0)
    assert prompt_cost.received_tokens(heard, sent) == 3 * (10 + MESSAGE_FRAMING_TOKENS)


# ── what is sent on ───────────────────────────────────────────────────────────────────────────────


def test_sent_on() -> None:
    """Stored ones at their count with their framing, others by their bytes."""
    assert (
        prompt_cost.forwarded_tokens([piece(1, 20), piece(0, None)])
        == 20 + MESSAGE_FRAMING_TOKENS + 100
    )


def test_without_a_limit_nothing_is_left_out() -> None:
    """The limit is off by default."""
    pieces = [piece(n, 96) for n in range(1, 5)]
    assert prompt_cost.limit_tail(pieces, None) == (pieces, False)
    assert prompt_cost.limit_tail(pieces, 400) == (pieces, False)


@pytest.mark.parametrize(("limit", "kept"), [(399, 3), (300, 3), (299, 2), (100, 1), (1, 1)])
def test_the_newest_that_fit(limit: int, kept: int) -> None:
    """The oldest leave first; the newest message stays whatever the limit."""
    pieces = [piece(n, 96) for n in range(1, 5)]
    assert prompt_cost.limit_tail(pieces, limit) == (pieces[-kept:], True)


def test_a_call_leaves_with_its_results() -> None:
    """Only whole blocks are left out, so no result stands without its call."""
    pieces = [
        piece(1, 96),
        piece(2, 96, "assistant", ["x", "y"]),
        piece(3, 96, "tool", answers="x"),
        piece(4, 96, "tool", answers="y"),
        piece(5, 96),
    ]
    assert prompt_cost.limit_tail(pieces, 300) == (pieces[4:], True)
    assert prompt_cost.limit_tail(pieces, 400) == (pieces[1:], True)


def test_a_call_that_waits_for_its_results_stays_with_them() -> None:
    """The request's own question is one block, and stays whole."""
    pieces = [piece(1, 96), piece(2, 96, "assistant", ["x"]), piece(3, 96, "tool", answers="x")]
    assert prompt_cost.limit_tail(pieces, 50) == (pieces[1:], True)


def told(pieces: Sequence[Piece], limit: int) -> tuple[Sequence[Piece], bool]:
    """The rule in plain steps: each place the tail may start at, summed anew."""
    if prompt_cost.forwarded_tokens(pieces) <= limit:
        return pieces, False
    marks = [Mark(p.seq, b"", b"", p.role, p.calls, p.answers, 1) for p in pieces]
    starts = [end + 1 for end in find_closed_ends(marks) if end + 1 < len(pieces)]
    start = next(
        (s for s in starts if prompt_cost.forwarded_tokens(pieces[s:]) <= limit),
        starts[-1] if starts else 0,
    )
    return pieces[start:], start > 0


TOKENS = st.one_of(st.none(), st.integers(0, 300))
PIECES = st.one_of(
    st.builds(piece, st.just(0), TOKENS, st.sampled_from(["user", "assistant"])),
    st.builds(
        piece,
        st.just(0),
        TOKENS,
        st.just("assistant"),
        st.lists(st.sampled_from("xyz"), max_size=2),
    ),
    st.builds(piece, st.just(0), TOKENS, st.just("tool"), answers=st.sampled_from("xyz")),
)


@given(st.lists(PIECES, max_size=12), st.integers(0, 2_000))
def test_what_fits_is_as_the_rule_is_told(pieces: list[Piece], limit: int) -> None:
    """The first place to start at from which all fits, else the last one."""
    assert prompt_cost.limit_tail(pieces, limit) == told(pieces, limit)


def test_what_fits_is_found_in_time_in_proportion() -> None:
    """However long the tail is that does not fit."""

    def work(count: int) -> partial[object]:
        return partial(prompt_cost.limit_tail, [piece(n, 96) for n in range(count)], 300)

    assert count_lines_run(work(100 * TIMES)) <= (TIMES + 1) * count_lines_run(work(100))
