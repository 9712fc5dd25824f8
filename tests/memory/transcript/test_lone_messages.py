"""Tool results alone: where their calls have a result already is looked up once for all of them."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from om_proxy.memory.model import EMPTY_CHAIN, Mark
from om_proxy.memory.transcript import lone_messages
from om_proxy.memory.transcript.lone_messages import match_tool_results
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import StoredTranscript
from tests.memory.clients import Thread, build_thread, parse, raw
from tests.support.counting import TIMES, count_lines_run

IDS = st.sampled_from(["", "a", "b", "c", "d"])
MARKS = st.tuples(
    st.sampled_from(["user", "assistant", "tool"]), st.lists(IDS, max_size=3), st.none() | IDS
)


def known(*marks: tuple[str, list[str], str | None]) -> StoredTranscript:
    """A thread of these roles, calls and answers."""
    live = tuple(
        Mark(seq, b"%d" % seq, EMPTY_CHAIN, role, tuple(calls), answers, 1)
        for seq, (role, calls, answers) in enumerate(marks, 1)
    )
    return StoredTranscript.of(Thread().memory, live=live)


def results(*calls: str) -> SentHistory:
    return SentHistory.of([raw("tool", "result", tool_call_id=call) for call in calls], parse)


def answered(thread: StoredTranscript, call: str) -> int | None:
    """Find the index of this call's result, by the plain rule; None: it has none."""
    for index in reversed(range(len(thread.live))):
        mark = thread.live[index]
        if mark.answers == call:
            return index
        if call in mark.calls:
            return None
    return None


def verdict(thread: StoredTranscript, sent: SentHistory) -> str | None:
    """Compute what `match_tool_results` must say, from the places of all calls."""
    places = [answered(thread, item.answers or "") for item in sent.items()]
    found = [place for place in places if place is not None]
    if not found:
        return "delta"
    if len(found) < len(places):
        called = {call for mark in thread.live for call in (*mark.calls, mark.answers)}
        ids = {item.answers for item in sent.items()}
        is_at_end = set(found) == set(range(min(found), len(thread.live)))
        return "inserted" if is_at_end and ids <= called and len(ids) == len(places) else None
    if len(set(found)) < len(found):
        return None
    return (
        None if any(mark.role == "user" for mark in thread.live[max(found) + 1 :]) else "step_retry"
    )


@example([("tool", [], "a"), ("tool", [], "b")], ["a", "b"])  # neighbours, which make one cell
@given(st.lists(MARKS, max_size=12), st.lists(IDS, min_size=1, max_size=4))
def test_the_newest_that_names_a_call_tells(
    marks: list[tuple[str, list[str], str | None]], calls: list[str]
) -> None:
    """Its result: the call has one. The call itself: it is waited for. Ids may come again, and in
    one message as well."""
    thread, sent = known(*marks), results(*calls)
    found = match_tool_results(thread, sent)
    assert (found.case if found else None) == verdict(thread, sent)
    if found and found.case == "step_retry":
        places = [answered(thread, call) for call in calls]
        altered = [
            range(cell.from_seq, cell.to_seq + 1) for cell in found.cells if cell.kind == "altered"
        ]
        assert [seq - 1 for seqs in altered for seq in seqs] == sorted(
            place for place in places if place is not None
        )


@pytest.mark.parametrize("stored", ["u1 a1", "u1 cx rx a1"])
def test_results_of_calls_nobody_knows(stored: str) -> None:
    """They are new, as in a thread whose older part is not loaded."""
    thread = build_thread(stored)
    found = match_tool_results(thread.stored_transcript(), results("y", "z"))
    assert found is not None
    assert (found.case, found.new, found.cut_seq) == ("delta", (0, 1), None)


def shape(name: str, count: int) -> tuple[StoredTranscript, SentHistory]:
    talk = [("user", [], None), ("assistant", [], None)] * (count // 2)
    if name == "unknown":
        return known(*talk), results(*(f"u{i}" for i in range(count)))
    tools: list[tuple[str, list[str], str | None]] = [("tool", [], f"c{i}") for i in range(count)]
    calls = [f"c{i}" for i in range(count)]
    if name == "answered":
        return known(("assistant", calls, None), *tools), results(*calls)
    return known(("assistant", calls, None), *talk), results(*calls)


@pytest.mark.parametrize("name", ["unknown", "answered", "waited for"])
def test_places_are_found_in_one_pass(name: str) -> None:
    """Eight times as many results of a thread eight times as long take at most nine times as many
    steps."""
    shorter, longer = (
        partial(match_tool_results, *shape(name, count)) for count in (100, 100 * TIMES)
    )
    shorter(), longer()  # parsed
    assert count_lines_run(longer) <= (TIMES + 1) * count_lines_run(shorter)


def test_the_newest_call_is_found_at_the_end() -> None:
    """The length of the thread does not matter: this is the usual request of a client that sends
    results alone."""
    talk = [("user", [], None)] * 1_000
    short, long = (known(*talk[:length], ("assistant", ["x"], None)) for length in (10, 1_000))
    look = [
        partial(lone_messages._find_results, thread, frozenset("x")) for thread in (short, long)
    ]
    assert look[0]() == look[1]() == {"x": None}
    assert count_lines_run(look[0]) == count_lines_run(look[1])
