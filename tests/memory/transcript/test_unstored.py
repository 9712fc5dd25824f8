"""What becomes of turns that waited for the store while other processes went on."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec.structs import replace

from om_proxy.memory.ledger import Account, TurnEntry, add_turn
from om_proxy.memory.model import MAX_VIEWS, Cell, Memory, extend_chain
from om_proxy.memory.transcript.rebase_turn import rebase_turn
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.memory.transcript.unstored import (
    MergedTurns,
    find_first_asked_at,
    merge_unstored,
    rewind_memory,
)
from tests.memory.clients import (
    Thread,
    apply_turn,
    build_thread,
    chat,
    forwarded_words,
    parse,
    word,
)

STORED_ROW = 7


def build_stored(words: str) -> Thread:
    """Build a thread that was stored before the store went away, at times below 10."""
    if not words:
        return Thread()
    thread = build_thread(words)
    thread.memory = replace(thread.memory, row_id=STORED_ROW)
    return thread


def play(thread: Thread, *turns: str) -> None:
    """Play turns such as `20-22 u1 a1 u2 > a2`: when each was asked and ended, what its client sent,
    and the reply. `20-22 u1 >` broke off."""
    for turn in turns:
        times, _, rest = turn.partition(" ")
        asked_at, ended_at = map(float, times.split("-"))
        words, _, said = rest.partition(" >")
        sent = thread.read_sent(chat(words))
        verdict = thread.reconcile(sent)
        thread.commit(
            apply_turn(
                thread._ground(verdict),
                verdict,
                sent,
                thread._tokens(sent),
                ended_at,
                parse(chat(said)[0]) if said.strip() else None,
                50,
                revived=thread._revived(verdict),
                asked_at=asked_at,
            )
        )


def merge(
    stored: str,
    waiting: tuple[str, ...],
    others: tuple[str, ...],
    *,
    delivered_seq: int = 0,
) -> tuple[Memory, MergedTurns]:
    """Play the waiting turns in one process and the others in another one. Return what the second
    has stored, and what comes of both."""
    here, elsewhere = build_stored(stored), build_stored(stored)
    before = here.memory
    play(here, *waiting)
    play(elsewhere, *others)
    if elsewhere.memory.next_seq > 1 and not before.row_id:
        elsewhere.memory = replace(elsewhere.memory, row_id=STORED_ROW)
    now = elsewhere.memory
    return now, merge_unstored(now, before, here.memory, delivered_seq=delivered_seq)


def live(memory: Memory) -> str:
    return " ".join(word(m.item.raw) for m in memory.tail)


def check_frame(now: Memory, merged: MergedTurns) -> None:
    """Seqs grow and are new, chains are linked, the views point at live messages."""
    after = merged.after
    seqs = [m.seq for m in after.tail]
    assert seqs == sorted(set(seqs))
    taken = [*(s for s in seqs if s >= now.next_seq), *(m.seq for m in merged.not_live)]
    assert taken == list(range(now.next_seq, after.next_seq))
    chain = after.chain_at_coverage
    for m in after.tail:
        chain = extend_chain(chain, m.item.fp)
        assert m.chain == chain
    assert len(after.views) <= MAX_VIEWS
    assert all(seq in seqs for seq in merged.new_seqs.values() if seq > now.coverage)


TABLE = {
    "nobody else spoke": ("u1 a1", ["20-22 u1 a1 u2 > a2"], [], "u1 a1 u2 a2", ""),
    "another device spoke": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2"],
        ["21-23 u9 > a9"],
        "u1 a1 u9 a9 u2 a2",
        "",
    ),
    "the client goes on elsewhere with what it holds": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2"],
        ["23-24 u1 a1 u2 a2 u3 > a3"],
        "u1 a1 u2 a2 u3 a3",
        "",
    ),
    "it went on elsewhere and came back": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2", "26-28 u1 a1 u2 a2 u3 a3 u4 > a4"],
        ["23-25 u1 a1 u2 a2 u3 > a3"],
        "u1 a1 u2 a2 u3 a3 u4 a4",
        "",
    ),
    "it shows two questions that it asked at once in another order": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2", "20-23 u1 a1 u2 a2 u3 > a3"],
        ["24-25 u1 a1 u3 a3 u2 a2 u4 > a4"],
        "u1 a1 u3 a3 u2 a2 u4 a4",
        "",
    ),
    "another question got the same reply elsewhere": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2"],
        ["21-23 u9 > a2"],
        "u1 a1 u9 a2 u2 a2",
        "",
    ),
    "the client of a window goes on elsewhere from its reply": (
        "u1 a1",
        ["20-22 a1 u2 > a2"],
        ["23-25 a2 u3 > a3"],
        "u1 a1 a2 u3 a3 u2",
        "",
    ),
    "the client of a window goes on from its reply, behind a question without one": (
        "u1 a1",
        ["23-25 a1 u3 > a3"],
        ["20-22 u2 >", "26-28 a3 u4 > a4"],
        "u1 a1 u2 a3 u4 a4 u3",
        "",
    ),
    # the same question elsewhere
    "its retry was answered elsewhere": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2"],
        ["24-25 u1 a1 u2 > a7"],
        "u1 a1 u2 a7",
        "a2",
    ),
    "it is the retry of what was answered elsewhere": (
        "u1 a1",
        ["24-25 u1 a1 u2 > a2"],
        ["20-22 u1 a1 u2 > a7"],
        "u1 a1 u2 a2",
        "",
    ),
    "it is the retry, and the client went on with the other reply": (
        "u1 a1",
        ["20-25 u1 a1 u2 > a2"],
        ["20-22 u1 a1 u2 > a7", "26-27 u1 a1 u2 a7 u3 > a3"],
        "u1 a1 u2 a7 u3 a3",
        "a2",
    ),
    "the question was stored ahead, its reply waits": (
        "u1 a1 u2",
        ["20-22 u1 a1 u2 > a2"],
        ["24-25 u1 a1 u2 > a7"],
        "u1 a1 u2 a7",
        "a2",
    ),
    "the same question of a thin client that had no reply": (
        "u1 a1 u2 a2 u3 a3",
        ["20-22 u4 > a4"],
        ["24-25 u4 > a7"],
        "u1 a1 u2 a2 u3 a3 u4 a7",
        "a4",
    ),
    "the first request, twice": ("", ["20-22 u1 > a1"], ["24-25 u1 > a7"], "u1 a7", "a1"),
    "its first attempt was stored late, and the client went on with the retry": (
        "u1 a1",
        ["24-25 u1 a1 u2 > a2", "26-27 u1 a1 u2 a2 u3 > a3"],
        ["20-30 u1 a1 u2 > a7"],
        "u1 a1 u2 a2 u3 a3",
        "",
    ),
    "it went on with the first attempt, then asked again": (
        "u1 a1",
        ["20-21 u1 a1 u2 > a2", "22-23 u1 a1 u2 a2 u3 > a3"],
        ["24-25 u1 a1 u2 > a7"],
        "u1 a1 u2 a7 u3 a3",
        "a2",
    ),
    # edits
    "the client took it back elsewhere": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2"],
        ["23-24 u1 a1 u5 > a5"],
        "u1 a1 u5 a5",
        "u2 a2",
    ),
    "it took both back and went on": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2", "23-24 u1 a1 u2 a2 u3 > a3"],
        ["25-26 u1 a1 u5 > a5", "27-28 u1 a1 u5 a5 u6 > a6"],
        "u1 a1 u5 a5 u6 a6",
        "u2 a2 u3 a3",
    ),
    "it forked before what was stored": (
        "u1 a1 u2 a2",
        ["20-22 u1 a1 u2 a2 u3 > a3"],
        ["23-24 u1 a1 u5 > a5"],
        "u1 a1 u5 a5",
        "u3 a3",
    ),
    "it sent it elsewhere and took it back there": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2"],
        ["23-24 u1 a1 u2 a2 u3 > a3", "25-26 u1 a1 u5 > a5"],
        "u1 a1 u5 a5",
        "u2 a2",
    ),
    "an edit elsewhere that had not seen it": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2"],
        ["21-24 u1 a1 u5 > a5"],
        "u1 a1 u5 a5 u2 a2",
        "",
    ),
    "it took back what it had said elsewhere": (
        "u1 a1",
        ["23-24 u1 a1 u5 > a5"],
        ["20-22 u1 a1 u2 > a2"],
        "u1 a1 u5 a5",
        "",
    ),
    "it goes on from a fork elsewhere": (
        "u1 a1 u2 a2",
        ["20-22 u1 a1 u2 a2 u3 > a3", "25-26 u1 a1 u5 a5 u6 > a6"],
        ["23-24 u1 a1 u5 > a5"],
        "u1 a1 u5 a5 u6 a6",
        "",
    ),
    "a fork that waits": (
        "u1 a1 u2 a2",
        ["20-22 u1 a1 u5 > a5"],
        [],
        "u1 a1 u5 a5",
        "",
    ),
    "a fork that waits, and others spoke before it": (
        "u1 a1 u2 a2",
        ["23-24 u1 a1 u5 > a5"],
        ["20-22 u9 > a9"],
        "u1 a1 u5 a5",
        "",
    ),
    "a fork that waits, and others spoke after it": (
        "u1 a1 u2 a2",
        ["20-22 u1 a1 u5 > a5"],
        ["23-24 u9 > a9"],
        "u1 a1 u2 a2 u9 a9 u5 a5",
        "",
    ),
    "regenerated while it waits": (
        "u1 a1 u2 a2",
        ["20-22 u1 a1 u2 > a7"],
        [],
        "u1 a1 u2 a7",
        "",
    ),
    "it went back to a branch that it had taken back elsewhere": (
        "u1 a1",
        ["20-22 u1 a1 u2 > a2", "25-26 u1 a1 u2 a2 u3 > a3"],
        ["23-24 u1 a1 u5 > a5"],
        "u1 a1 u2 a2 u3 a3",
        "",
    ),
    "it said again what it had taken back": (
        "u1 a1",
        ["22-23 u1 a1 u2 > a2", "24-25 u1 a1 u2 a2 u5 a5 u6 > a6"],
        ["20-21 u1 a1 u5 > a5"],
        "u1 a1 u5 a5 u2 a2 u6 a6",
        "",
    ),
    "rewound while it waits": (
        "u1 a1 u2 a2 u3 a3",
        ["20-22 u1 a1 u2 > a7"],
        [],
        "u1 a1 u2 a7",
        "",
    ),
    "a thin client takes nothing back": (
        "u1 a1 u2 a2 u3 a3",
        ["20-22 u4 > a4"],
        ["23-24 u5 > a5", "25-26 u6 > a6"],
        "u1 a1 u2 a2 u3 a3 u5 a5 u6 a6 u4 a4",
        "",
    ),
    "tool steps": (
        "u1 a1",
        ["20-21 u1 a1 u2 > cx", "22-23 u1 a1 u2 cx rx > a2"],
        ["24-25 u1 a1 u2 cx rx a2 u3 > a3"],
        "u1 a1 u2 cx rx a2 u3 a3",
        "",
    ),
    "a tool step was answered elsewhere, too": (
        "u1 a1",
        ["20-21 u1 a1 u2 > cx", "22-23 u1 a1 u2 cx rx > a2"],
        ["24-25 u1 a1 u2 cx rx > a7"],
        "u1 a1 u2 cx rx a7",
        "a2",
    ),
}


@pytest.mark.parametrize(
    ("stored", "waiting", "others", "after", "not_live"), TABLE.values(), ids=TABLE
)
def test_what_becomes_of_waiting_turns(
    stored: str, waiting: list[str], others: list[str], after: str, not_live: str
) -> None:
    """It is what would have become of them if they had been stored at their time."""
    now, merged = merge(stored, tuple(waiting), tuple(others))
    assert live(merged.after) == after
    assert " ".join(word(m.item.raw) for m in merged.not_live) == not_live
    check_frame(now, merged)


def test_the_same_words_after_a_reply_that_went_out() -> None:
    """A thin client that says `ok` again has said it twice."""
    stored = "u1 a1 u2 a2 u3 a3"
    _, merged = merge(stored, ("20-22 uok > a4",), ("24-25 uok > a7",), delivered_seq=8)
    assert live(merged.after) == stored + " uok a7 uok a4"


def test_a_first_request_that_its_client_asked_again_in_another_process() -> None:
    """The first attempt went to a process that stored it late; the retry waits in another one, with
    all that its client said since. A third process has opened the next request before they are
    merged. Each text stands once, with the reply that the client holds."""
    waiting = (
        "24-25 u1 > a2",
        "26-27 u1 a2 u2 a3 u3 > a4",
        "28-29 u1 a2 u2 a3 u3 a4 u4 > a5",
    )
    now, merged = merge("", waiting, ("20-31 u1 > a1",), delivered_seq=2)
    assert live(merged.after) == "u1 a2 u2 a3 u3 a4 u4 a5"
    check_frame(now, merged)
    third = Thread()
    third.commit(now)
    sent = third.read_sent(chat("u1 a2 u2 a3 u3 a4 u4 a5 u5"))
    opened = third.reconcile(sent)
    third.commit(merged.after)
    verdict = rebase_turn(merged.after, opened, sent) or third.reconcile(sent)
    after = apply_turn(merged.after, verdict, sent, {}, 34.0, parse(chat("a6")[0]), 50)
    assert live(after) == "u1 a2 u2 a3 u3 a4 u4 a5 u5 a6"


@pytest.mark.parametrize(
    ("others", "after"),
    [
        (["20-22 u1 > a1"], "u1 a7"),  # the later reply stays
        (["20-30 u1 > a1"], "u1 a1"),
        (["20-22 u1 > a1", "23-24 u1 a1 u2 > a2"], "u1 a1 u2 a2"),  # the client went on with a1
        # a thin client says `u1` once more
        (["20-21 u1 > a1", "22-23 u2 > a2"], "u1 a1 u2 a2 u1 a7"),
    ],
)
def test_the_retry_of_a_first_request_waits_alone(others: list[str], after: str) -> None:
    """Its text stands once, as in a process that has the store. That its reply went out proves
    nothing: the first attempt's reply may not have."""
    _, merged = merge("", ("26-27 u1 > a7",), tuple(others), delivered_seq=2)
    assert live(merged.after) == after


@pytest.mark.parametrize(
    ("activated", "count", "left"),
    [
        pytest.param(0, 4, [2], id="no chunk is active"),
        pytest.param(1, 4, [], id="up to the fork"),
        pytest.param(2, 6, [], id="beyond the fork"),
    ],
)
def test_what_was_observed_meanwhile(activated: int, count: int, left: list[int]) -> None:
    """A waiting turn takes back what a chunk covers, and the chunk with it. What the log covers
    stays: both branches stand."""
    here, elsewhere = build_stored("u1 a1 u2 a2 u3 a3"), build_stored("u1 a1 u2 a2 u3 a3")
    before = here.memory
    play(here, "20-22 u1 a1 u5 > a5")
    for end in (2, 4):
        elsewhere.observe(end - elsewhere.memory.chunked_to)
    if activated:
        elsewhere.activate(activated)
    now = elsewhere.memory
    merged = merge_unstored(now, before, here.memory)
    assert merged.after.count == count
    assert live(merged.after).endswith("u5 a5")
    assert [chunk.last for chunk in merged.after.chunks] == left
    check_frame(now, merged)


def test_an_older_release_records_no_times() -> None:
    """Without the time of a request there is no proof: both branches stand."""
    _, merged = merge("u1 a1", ("20-22 u1 a1 u2 > a2",), ("0-24 u1 a1 u5 > a5",))
    assert live(merged.after) == "u1 a1 u5 a5 u2 a2"


@pytest.mark.parametrize(
    ("forgotten_at", "after"),
    [(None, "u1 a1 u2 a2"), (19.0, "u1 a1 u2 a2"), (23.0, "u2 a2"), (30.0, "")],
)
def test_a_first_turn_of_a_thread_that_was_forgotten(
    forgotten_at: float | None, after: str
) -> None:
    """Only what was asked after the forgetting is stored, and starts a new thread."""
    here = Thread()
    play(here, "20-22 u1 > a1", "25-26 u1 a1 u2 > a2")
    empty = Memory(key=here.memory.key)
    merged = merge_unstored(empty, empty, here.memory, forgotten_at=forgotten_at)
    assert live(merged.after) == after
    assert find_first_asked_at(empty, here.memory) == 20.0
    assert find_first_asked_at(here.memory, here.memory) is None


def test_a_thread_that_began_anew() -> None:
    """Its seqs say nothing of the messages that had them before, and its sums begin anew."""
    here, anew = build_stored("u1 a1 u2 a2"), Thread()
    before = here.memory
    play(here, "20-22 u1 a1 u2 a2 u3 > a3", "27-28 u1 a1 u2 a2 u3 a3 u4 > a4")
    play(anew, "24-25 u7 > a7", "25-26 u7 a7 u8 > a8")
    paid = replace(
        here.memory, ledger=add_turn(here.memory.ledger, TurnEntry(Account(calls=1, cost=9)))
    )
    now = replace(anew.memory, row_id=STORED_ROW + 1)
    merged = merge_unstored(now, before, paid, forgotten_at=23.0)
    assert live(merged.after) == "u7 a7 u8 a8 u4 a4"
    assert merged.after.ledger == now.ledger
    assert live(merge_unstored(now, before, paid, forgotten_at=30.0).after) == "u7 a7 u8 a8"


def test_another_database() -> None:
    """It may lack what was stored before, or have another message at its seq."""
    here = build_stored("u1 a1 u2 a2")
    before = here.memory
    play(here, "20-22 u1 a1 u2 a2 u3 > a3")
    empty = Memory(key=before.key)
    merged = merge_unstored(empty, before, here.memory, is_other_database=True)
    assert live(merged.after) == "u3 a3"


def test_something_that_only_the_client_holds() -> None:
    """A request elsewhere that shows unknown messages at the place takes nothing back."""
    here, elsewhere = build_stored("u1 a1"), build_stored("u1 a1")
    before = here.memory
    play(here, "20-22 u1 a1 u2 > a2")
    play(elsewhere, "23-24 u1 a1 u5 > a5")
    cells = (Cell("same", 0, 2, 1, 2), Cell("extra", 2, 4, 1, 0), Cell("same", 4, 5, 3, 3))
    views = elsewhere.memory.views
    now = replace(elsewhere.memory, views=(*views[:-1], replace(views[-1], count=5, cells=cells)))
    assert live(merge_unstored(now, before, here.memory).after) == "u1 a1 u5 a5 u2 a2"


def merge_late_turn() -> Thread:
    """The client of a window had a turn in a process that lost the store, and has gone on elsewhere
    past its end: the turn stands behind what came after it."""
    thread = build_stored("u1 a1")
    here = build_stored("u1 a1")
    play(here, "20-22 u1 a1 u2 > a2")
    play(thread, "23-25 u3 a3 u4 > a4", "26-28 a3 u4 a4 u5 > a5")
    thread.memory = merge_unstored(thread.memory, build_stored("u1 a1").memory, here.memory).after
    thread.rows |= {message.seq: (message, True, 0) for message in thread.memory.tail}
    assert live(thread.memory) == "u1 a1 u3 a3 u4 a4 u5 a5 u2 a2"
    return thread


@pytest.mark.parametrize(
    ("turns", "after"),
    [
        (["30-32 a4 u5 a5 u6 > a6"], "u1 a1 u3 a3 u4 a4 u5 a5 u2 a2 u6 a6"),
        (
            ["30-32 a4 u5 a5 u6 > a6", "33-35 a5 u6 a6 u7 > a7"],
            "u1 a1 u3 a3 u4 a4 u5 a5 u2 a2 u6 a6 u7 a7",
        ),
        (["30-32 u4 a4 u5 > a9"], "u1 a1 u3 a3 u4 a4 u5 u2 a2 a9"),
        (["30-32 u4 a4 u8 > a8"], "u1 a1 u3 a3 u4 a4 u2 a2 u8 a8"),
        (["30-32 u1 a1 u8 > a8"], "u1 a1 u8 a8"),
    ],
    ids=["it goes on", "and on", "another reply", "an edit behind it", "an edit before it"],
)
def test_what_was_stored_late_is_not_taken_back(turns: list[str], after: str) -> None:
    """A client that goes on from a message shows nothing of what was said before that message and
    is stored behind it. An edit before both takes it back."""
    thread = merge_late_turn()
    play(thread, *turns)
    assert live(thread.memory) == after


@pytest.mark.parametrize("covered_count", [4, 8])
def test_what_was_stored_late_behind_noted_messages_is_not_taken_back(covered_count: int) -> None:
    """A client goes on from a message that notes cover by now."""
    thread = merge_late_turn()
    thread.observe(covered_count)
    thread.activate(1)
    play(thread, "30-32 a4 u5 a5 u6 > a6", "33-35 a5 u6 a6 u7 > a7")
    raw = {4: "u4 a4 u5 a5 u2 a2 u6 a6 u7 a7", 8: "u2 a2 u6 a6 u7 a7"}[covered_count]
    assert live(thread.memory) == raw
    assert thread.memory.covered_count == covered_count


def test_a_late_turn_that_waits_again() -> None:
    """It was compared with what came after it, and could not be written. Others go on from what was
    said after it: that takes nothing back, and neither does the late turn."""
    here = build_stored("u1 a1")
    late = build_stored("u1 a1")
    play(here, "23-25 u3 > a3")
    before = here.memory
    play(late, "20-22 u1 a1 u2 > a2")
    waiting = merge_unstored(before, rewind_memory(before, 20.0), late.memory).after
    assert live(waiting) == "u1 a1 u3 a3 u2 a2"
    play(here, "26-28 u3 a3 u4 > a4")
    merged = merge_unstored(here.memory, before, waiting)
    assert live(merged.after) == "u1 a1 u3 a3 u4 a4 u2 a2"


def test_what_was_stored_late_is_in_the_prompt() -> None:
    """The client's window does not reach it, wherever it stands: the store fills it in."""
    thread = merge_late_turn()
    play(thread, "30-32 a4 u5 a5 u6 > a6")
    verdict = thread.reconcile(thread.read_sent(chat("a5 u6 a6 u7")))
    late = [m.seq for m in thread.memory.tail if word(m.item.raw) in ("u2", "a2")]
    assert [c for c in verdict.cells if c.kind == "unsent" and c.from_seq == late[0]]
    assert not [c for c in verdict.cells if c.kind == "folded"]
    assert late[-1] < verdict.after_seq


def tell(thread: Thread, words: str) -> str:
    """Return what a request is forwarded as."""
    return forwarded_words(thread.ask(chat(words))[2])


@pytest.mark.parametrize("noted_count", [0, 2], ids=["raw", "noted before it"])
def test_a_late_question_that_its_client_shows(noted_count: int) -> None:
    """It stands behind what came after it. Prompts tell it where the client shows it, and once the
    window does not reach it, where it stands."""
    here, thread = build_stored("u1 a1"), build_stored("u1 a1")
    before = here.memory
    play(here, "20-22 u1 a1 u2 > a2")
    play(thread, "23-25 a2 u3 > a3")
    thread.memory = merge_unstored(thread.memory, before, here.memory).after
    assert live(thread.memory) == "u1 a1 a2 u3 a3 u2"
    thread.rows |= {message.seq: (message, True, 0) for message in thread.memory.tail}
    if noted_count:
        thread.observe(noted_count)
        thread.activate(1)
    first = "" if noted_count else "[u1] [a1] "
    assert tell(thread, "u2 a2 u3 a3 u4") == f"{first}u2 a2 u3 a3 u4"
    play(thread, "30-32 u2 a2 u3 a3 u4 > a4")
    assert live(thread.memory) == f"{first}a2 u3 a3 u2 u4 a4".replace("[", "").replace("]", "")
    assert tell(thread, "u2 a2 u3 a3 u4 a4 u5") == f"{first}u2 a2 u3 a3 u4 a4 u5"
    assert tell(thread, "u3 a3 u4 a4 u5") == f"{first}[a2] u3 a3 [u2] u4 a4 u5"


def test_a_late_turn_of_a_waiting_request() -> None:
    """Turns that wait elsewhere take it back as little."""
    thread = merge_late_turn()
    before = thread.memory
    play(thread, "30-32 a4 u5 a5 u6 > a6")
    waiting = thread.memory
    play(other := Thread(), "1-2 u1 >")
    other.memory = before
    play(other, "33-34 u9 > a9")
    merged = merge_unstored(other.memory, before, waiting)
    assert live(merged.after) == "u1 a1 u3 a3 u4 a4 u5 a5 u2 a2 u9 a9 u6 a6"


def test_the_memory_as_an_earlier_request_knew_it() -> None:
    """Without the turns that ended later, and without what stands behind them."""
    thread = build_stored("u1 a1")
    play(thread, "20-22 u1 a1 u2 > a2", "23-25 u1 a1 u2 a2 u3 > a3")
    then = rewind_memory(thread.memory, 24.0)
    assert live(then) == "u1 a1 u2 a2"
    assert then.next_seq == 5
    assert all(max(view.seq, view.reply) <= 4 for view in then.views)
    assert rewind_memory(thread.memory, 26.0) is thread.memory


def test_the_memory_as_a_request_knew_it_before_some_of_it_was_noted() -> None:
    """What ended later is left out, also where notes cover it by now."""
    thread = build_stored("u1 a1")
    play(thread, "20-22 u1 a1 u2 > a2", "23-25 u1 a1 u2 a2 u3 > a3")
    thread.observe(6)
    thread.activate(1)
    then = rewind_memory(thread.memory, 24.0)
    assert [mark.seq for mark in then.marks] == [1, 2, 3, 4]
    assert (then.next_seq, then.coverage, then.covered_count, then.end) == (5, 4, 4, 4)
    assert then.covered_tokens < thread.memory.covered_tokens
    beginning = rewind_memory(thread.memory, 0.0)
    assert (beginning.next_seq, beginning.coverage, beginning.covered_tokens) == (1, 0, 0)


@pytest.mark.parametrize(
    ("waiting", "after", "newest"),
    [
        (("20-22 u4 > a4",), "u9 a9 u4 a4", "u4"),
        # what it left unsent was one stretch, and others came into it
        (("20-22 u4 > a4", "24-25 u5 > a5"), "u9 a9 u4 a4 u5 a5", "u5"),
    ],
)
def test_a_retry_after_the_merge_is_known(
    waiting: tuple[str, ...], after: str, newest: str
) -> None:
    """The request is recorded where its messages stand now: its client may ask again that had no
    reply."""
    here, elsewhere = build_stored("u1 a1 u2 a2 u3 a3"), build_stored("u1 a1 u2 a2 u3 a3")
    before = here.memory
    play(here, *waiting)
    play(elsewhere, "21-23 u9 > a9")
    elsewhere.commit(merge_unstored(elsewhere.memory, before, here.memory).after)
    assert live(elsewhere.memory).endswith(after)
    verdict = elsewhere.reconcile(elsewhere.read_sent(chat(newest)), Hints(undelivered=True))
    assert verdict.case == "retry"
    assert verdict.after_seq == elsewhere.memory.end - 1


@pytest.mark.parametrize(
    ("waiting", "others", "noted_count", "now", "later"),
    [
        pytest.param(["20-22"], [], 0, "u1 a1 uX a2 u3 a3 u4 a4", "", id="nobody noted it"),
        pytest.param(["20-22"], [], 2, "uX a2 u3 a3 u4 a4", "", id="noted before it"),
        pytest.param(["20-22"], [], 4, "u3 a3 u4 a4", "uX", id="its old text was noted"),
        pytest.param(["20-22"], ["21-23 u9 > a9"], 0, "u1 a1 uX a2 u3 a3 u9 a9 u4 a4", "", id="another device spoke"),
        pytest.param(["20-22"], ["21-23 u9 > a9"], 4, "u3 a3 u9 a9 u4 a4", "uX", id="and it was noted"),
    ],
)  # fmt: skip
def test_a_message_that_was_corrected_while_its_turn_waited(
    waiting: list[str], others: list[str], noted_count: int, now: str, later: str
) -> None:
    """The client's text takes the place of the stored one. If notes hold the old text by then, it
    is a correction, which the next request stores."""
    stored = "u1 a1 u2 a2 u3 a3"
    here, elsewhere = build_stored(stored), build_stored(stored)
    before = here.memory
    play(here, *(f"{times} u1 a1 uX a2 u3 a3 u4 > a4" for times in waiting))
    play(elsewhere, *others)
    if noted_count:
        elsewhere.observe(noted_count)
        elsewhere.activate(1)
    merged = merge_unstored(elsewhere.memory, before, here.memory)
    assert live(merged.after) == now
    check_frame(elsewhere.memory, merged)
    elsewhere.commit(merged.after)
    play(elsewhere, "30-32 u1 a1 uX a2 u3 a3 u4 a4 u5 > a5")
    assert live(elsewhere.memory) == " ".join([now, *later.split(), "u5 a5"])
    elsewhere.observe(20)
    elsewhere.activate(9)
    assert tell(elsewhere, "u1 a1 uX a2 u3 a3 u4 a4 u5 a5 u6") == "u6"


def test_a_correction_that_was_taken_back_elsewhere_while_its_turn_waited() -> None:
    """A later request has shown the message as it is stored: it stays so."""
    waiting = ("20-22 u1 a1 uX a2 u3 a3 u4 > a4", "25-26 u9 > a9")
    others = ("23-24 u1 a1 u2 a2 u3 a3 u4 a4 u5 > a5",)
    now, merged = merge("u1 a1 u2 a2 u3 a3", waiting, others)
    assert live(merged.after) == "u1 a1 u2 a2 u3 a3 u4 a4 u5 a5 u9 a9"
    check_frame(now, merged)


@pytest.mark.parametrize("seed", range(100))
def test_one_client_and_two_processes(seed: int) -> None:
    """A client with its whole history is sent to one process or another, edits and retries. What
    stands in the end is what it holds; nothing that it holds is lost, and nothing stands twice."""
    dice = random.Random(seed)
    numbers = itertools.count(10)
    start = "u1 a1 u2 a2" if seed % 2 else ""
    here, elsewhere = build_stored(start), build_stored(start)
    before = here.memory
    held, now, delivered_seq = start.split(), 20, 0
    turn_count = dice.randrange(1, 7)
    for number in range(turn_count):
        if held and dice.random() < 0.3:
            held = held[: 2 * dice.randrange(1, len(held) // 2 + 1)]
        question = f"u{next(numbers)}"
        for _ in range(dice.choice((1, 1, 1, 2))):  # the first attempt timed out
            answer = f"a{next(numbers)}"
            # of a thread whose only turn waits, nothing tells that its client shows its history
            is_last = not start and number == turn_count - 1
            process = here if is_last else dice.choice((here, elsewhere))
            play(process, f"{now}-{now + 1} {' '.join([*held, question])} > {answer}")
            now += 2
        if process is here and not held:
            delivered_seq = here.memory.end
        held = [*held, question, answer]
    if elsewhere.memory.next_seq > 1:
        elsewhere.memory = replace(elsewhere.memory, row_id=STORED_ROW)
    merged = merge_unstored(elsewhere.memory, before, here.memory, delivered_seq=delivered_seq)
    assert live(merged.after).split() == held
    check_frame(elsewhere.memory, merged)
    # the next request finds all of it
    elsewhere.commit(merged.after)
    verdict = elsewhere.reconcile(elsewhere.read_sent(chat(" ".join([*held, "u9"]))))
    assert (verdict.cut_seq, [*verdict.new]) == (None, [len(held)])


def test_the_newest_turn_is_the_one_that_waited() -> None:
    """What a thread keeps of its newest turn is of the turn that was stored last."""
    here, elsewhere = build_stored("u1 a1"), build_stored("u1 a1")
    before = here.memory
    play(here, "20-22 u1 a1 u2 > a2")
    play(elsewhere, "21-23 u9 > a9")
    now = replace(elsewhere.memory, model="others", offers_tools=False)
    waiting = replace(here.memory, model="waited", offers_tools=True)
    after = merge_unstored(now, before, waiting).after
    assert (after.model, after.offers_tools) == ("waited", True)
