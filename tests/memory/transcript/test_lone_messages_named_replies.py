"""A request that names the reply that it follows has one place, whatever stands behind that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.transcript.reconcile import Hints
from tests.memory.clients import Thread, parse, raw, reply


def follow(seq: int) -> Hints:
    return Hints(answered_seq=seq)


def say(thread: Thread, text: str, seq: int) -> int:
    """Say this behind the reply at `seq`. Return the seq of the reply to it."""
    thread.turn([raw("user", text)], reply(f"re {text}"), follow(seq))
    return thread.memory.end


def texts(thread: Thread) -> list[bytes]:
    return [message.item.fp for message in thread.live()]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2), st.booleans()), min_size=1, max_size=9)
)
def test_a_chain_is_what_its_whole_history_is(steps: list[tuple[int, int, bool]]) -> None:
    """Each turn goes on from one of the newest replies, live or not. One client names it, another
    sends all that was said up to it. At times the two change places."""
    by_id, whole, mixed = Thread(), Thread(), Thread()
    seqs, mixed_seqs = [0], [0]
    histories: list[list[bytes]] = [[]]
    for number, (back, count, names) in enumerate(steps):
        place = max(len(histories) - 1 - back, 0 if number == 0 else 1)
        new = [raw("user", f"{number} {index}") for index in range(count)]
        history, said = [*histories[place], *new], reply(f"re {number}")
        by_id.turn(new, said, follow(seqs[place]))
        whole.turn(history, said)
        if names and mixed_seqs[place]:
            mixed.turn(new, said, follow(mixed_seqs[place]))
        else:
            mixed.turn(history, said)
        seqs.append(by_id.memory.end)
        mixed_seqs.append(mixed.memory.end)
        histories.append([*history, said])
        expected = [parse(one).fp for one in histories[-1]]
        assert texts(by_id) == texts(whole) == texts(mixed) == expected


def test_what_is_known_behind_the_reply_stays() -> None:
    """A request whose message is there is a retry, and one with more goes on behind that."""
    thread = Thread()
    first = say(thread, "one", 0)
    say(thread, "two", first)
    assert thread.turn([raw("user", "two")], reply("re two"), follow(first)).case == "retry"
    verdict = thread.turn(
        [raw("user", "two"), reply("re two"), raw("user", "three")], reply("!"), follow(first)
    )
    assert (verdict.case, verdict.forks, verdict.new) == ("answering", False, (2,))
    assert len(thread.live()) == 6


def test_equal_words_are_told_apart_by_what_they_follow() -> None:
    thread = Thread()
    seq = 0
    for _ in range(4):
        seq = say(thread, "go on", seq)
    assert len(thread.live()) == 8
    assert [c.kind for c in thread.memory.views[-1].cells] == ["unsent", "same"]


@pytest.mark.parametrize("covered", [2, 4])
def test_an_older_reply_takes_back_what_is_behind_it(covered: int) -> None:
    """Also what notes cover."""
    thread = Thread()
    first = say(thread, "one", 0)
    say(thread, "two", first)
    say(thread, "three", thread.memory.end)
    thread.observe(covered)
    thread.activate(1)
    say(thread, "four", first)
    assert [parse(m.item.raw).fp for m in thread.live()] == [
        parse(one).fp
        for one in (raw("user", "one"), reply("re one"), raw("user", "four"), reply("re four"))
    ]
    assert thread.memory.coverage <= first


def test_a_reply_that_is_gone_is_no_place() -> None:
    thread = Thread()
    first = say(thread, "one", 0)
    assert thread.turn([raw("user", "two")], None, follow(first + 9)).case == "delta"
