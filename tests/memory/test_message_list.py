"""A tail that keeps its sums says what a plain one would say."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.message_list import MessageList, count_same
from om_proxy.memory.model import EMPTY_CHAIN, MESSAGE_FRAMING_TOKENS, Mark, Memory, Message
from om_proxy.memory.rounds import LookedUp, Round
from tests.memory.building import KEY, message


def numbered(seqs: Sequence[int]) -> tuple[Message, ...]:
    made = (message(seq, EMPTY_CHAIN, "user", MESSAGE_FRAMING_TOKENS + seq % 7) for seq in seqs)
    return tuple(
        replace(
            m,
            encoding="o200k_base" if m.seq % 5 else "cl100k_base",
            look_ups=None if m.seq % 6 else LOOKED_UP,
        )
        for m in made
    )


LOOKED_UP = LookedUp((Round(b"call", (b"result",)),))
Told = tuple[tuple[Mark, ...], int, int, frozenset[str], tuple[Message, ...]]


def told(messages: Sequence[Message]) -> Told:
    tokens = sum(m.tokens + MESSAGE_FRAMING_TOKENS for m in messages)
    encodings = frozenset(m.encoding for m in messages)
    return (
        tuple(m.mark for m in messages),
        tokens,
        sum(len(m.item.raw) + (len(b"callresult") if m.look_ups else 0) for m in messages),
        encodings,
        tuple(m for m in messages if m.look_ups),
    )


def tells(stretch: MessageList) -> Told:
    return (
        stretch.marks,
        stretch.framed_tokens,
        stretch.json_bytes,
        stretch.encodings,
        stretch.with_look_ups,
    )


SEQS = st.lists(st.integers(1, 40), max_size=20, unique=True).map(sorted)
STEPS = st.lists(
    st.tuples(st.sampled_from(["through", "grown", "dated", "asked"]), st.integers(0, 50)),
    max_size=8,
)


@given(SEQS, STEPS)
def test_cut_and_grown_it_tells_the_same(seqs: list[int], steps: list[tuple[str, int]]) -> None:
    """The cached sums are those of the messages that are there, whatever was cut off, added and
    asked before."""
    plain, tail = numbered(seqs), MessageList(numbered(seqs))
    for step, number in steps:
        if step == "through":
            plain, tail = tuple(m for m in plain if m.seq <= number), tail.messages_through(number)
        elif step == "grown":
            start = plain[-1].seq + 1 if plain else 1
            fresh = numbered(range(start, start + number % 4))
            plain, tail = plain + fresh, tail.append_messages(fresh)
        elif step == "dated":
            kept = max(len(plain) - number % 4, 0)
            dated = [replace(m, at=m.at + 1.0) for m in plain[kept:]]
            plain, tail = (*plain[:kept], *dated), tail.replace_last(dated)
        else:
            assert tells(tail) == told(plain)
        assert tail == plain
    assert tells(tail) == told(plain)


@given(SEQS, st.integers(0, 45), st.integers(0, 45))
def test_a_part_of_it(seqs: list[int], first: int, last: int) -> None:
    """A range of seqs works, whether such messages are there or not."""
    plain, tail = numbered(seqs), MessageList(numbered(seqs))
    inside = tuple(m for m in plain if first <= m.seq <= last)
    assert tail.messages_between(first, last) == inside
    assert tail.framed_tokens_between(first, last) == told(inside)[1]
    assert tail.messages_after(first) == tuple(m for m in plain if m.seq > first)


@given(SEQS)
def test_in_a_memory_it_is_a_tail_like_any_other(seqs: list[int]) -> None:
    """Two memories with the same messages are equal, and say the same of them."""
    plain, summed = (
        Memory(key=KEY, tail=tail, next_seq=99)
        for tail in (numbered(seqs), MessageList(numbered(seqs)))
    )
    assert plain == summed
    assert (plain.marks, plain.pending_tokens, plain.end) == (
        summed.marks,
        summed.pending_tokens,
        summed.end,
    )


def test_what_has_not_changed_is_itself() -> None:
    """Nothing is copied where nothing is cut off and nothing added."""
    stretch = MessageList(numbered([1, 2, 5]))
    assert (
        stretch.messages_through(5)
        is stretch.append_messages(())
        is MessageList.of(stretch)
        is stretch
    )


def test_how_many_of_the_same_messages_both_begin_with() -> None:
    first = numbered(range(1, 6))
    assert [count_same(first[:n], first) for n in range(6)] == [0, 1, 2, 3, 4, 5]
    assert count_same(first, (first[0], numbered([2])[0], *first[2:])) == 1
