"""The checker finds each fault that is planted into a sound history, and none in that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.e2e.replicas.history import (
    MAX_STRANDED_S,
    Forgetting,
    History,
    Lease,
    Outage,
    Prompt,
    Range,
    Reading,
    Restore,
    StoredMessage,
    StoredThread,
    Turn,
    check,
)

AT = 1_000.0


def chain(mark: str) -> bytes:
    return b"chain to " + mark.encode()


def store(thread: str, *marks: str, covered: int = 0, chunked: int = 0) -> StoredThread:
    """A thread with these messages. The first `covered` are in one entry, the next in a chunk."""
    messages = tuple(
        StoredMessage(n, mark, chain(mark), chain(mark)) for n, mark in enumerate(marks, 1)
    )
    ends = [end for end in (covered, chunked) if end]
    ranges = tuple(
        Range(after, last, chain(marks[last - 1]))
        for after, last in zip([0, *ends], ends, strict=False)
    )
    return StoredThread(
        thread, messages, ranges, covered, tuple(range(covered + 1, len(marks) + 1))
    )


# `a`: a plain conversation, with one request that broke off and one that was refused. `b`: after
# two turns its client took the second back. `gone` was forgotten.
SOUND = History(
    turns=(
        Turn("a", "U1", 1, 2, "acknowledged", "R1"),
        Turn("a", "U2", 3, 4, "acknowledged", "R2"),
        Turn("a", "U3", 5, 6, "unknown"),
        Turn("a", "U4", 7, 8, "refused"),
        Turn("a", "U5", 9, 10, "acknowledged", "R5"),
        Turn("b", "V1", 1, 2, "acknowledged", "S1"),
        Turn("b", "V2", 3, 4, "acknowledged", "S2", shows=("V1", "S1")),
        Turn("b", "V3", 5, 6, "acknowledged", "S3", takes_back=("V2", "S2"), shows=("V1", "S1")),
        Turn("b", "V4", 7, 8, "acknowledged", "S4", shows=("V1", "S1", "V3", "S3")),
        Turn("gone", "W1", 1, 2, "acknowledged", "T1"),
    ),
    prompts=(
        Prompt("U1", ("U1",), reply="R1"),
        Prompt("U2", ("U1", "R1", "U2"), reply="R2"),
        Prompt("U3", ("U1", "R1", "U2", "R2", "U3"), reply="R3"),
        Prompt("U5", ("U3", "R3", "U5"), frozenset({"U1", "R1", "U2", "R2"}), reply="R5"),
        Prompt("V1", ("V1",), reply="S1"),
        Prompt("V2", ("V1", "S1", "V2"), reply="S2"),
        Prompt("V3", ("V1", "S1", "V3"), reply="S3"),
        Prompt("V4", ("V1", "S1", "V3", "S3", "V4"), reply="S4"),
        Prompt("W1", ("W1",), reply="T1"),
    ),
    threads=(
        store("a", "U1", "R1", "U2", "R2", "U3", "R3", "U5", "R5", covered=4, chunked=6),
        store("b", "V1", "S1", "V3", "S3", "V4", "S4"),
    ),
    readings=(
        Reading("a", 2.1, 2.2, 1, 10, 0),
        Reading("a", 4.1, 4.2, 1, 12, 0),
        Reading("a", 10.1, 10.2, 1, 20, 1),
        Reading("gone", 2.1, 2.2, 2, 11, 0, frozenset({"W1", "T1"})),
        Reading("gone", 5.1, 5.2, 0, 0, 0),
    ),
    forgettings=(Forgetting(frozenset({"W1", "T1"}), 5.0),),
    leases=(
        Lease("a", "one", 2, 102, 3),
        Lease("a", "two", 4, 104),
        Lease("a", "one", 104, 204),
        Lease("b", "two", 2, 102),
        Lease("b", "two", 50, 150),
    ),
    at=AT,
)


def test_a_sound_history() -> None:
    found = check(SOUND)
    assert not found, str(found)


def change_thread(**changes: object) -> Callable[[History], History]:
    return lambda history: replace(
        history,
        threads=(history.threads[0]._replace(**changes), *history.threads[1:]),  # type: ignore[arg-type] # of any field
    )


def store_instead(*marks: str) -> Callable[[History], History]:
    """Let thread `a` be stored as these messages."""
    return lambda history: replace(history, threads=(store("a", *marks), *history.threads[1:]))


def ask_instead(said: str, *marks: str) -> Callable[[History], History]:
    def plant(history: History) -> History:
        prompts = (
            prompt._replace(marks=marks, noted=frozenset()) if prompt.said == said else prompt
            for prompt in history.prompts
        )
        return replace(history, prompts=tuple(prompts))

    return plant


def read_also(*readings: Reading) -> Callable[[History], History]:
    return lambda history: replace(history, readings=(*history.readings, *readings))


def lease_also(*leases: Lease) -> Callable[[History], History]:
    return lambda history: replace(history, leases=(*history.leases, *leases))


def change_message(place: int, **changes: object) -> Callable[[History], History]:
    def plant(history: History) -> History:
        messages = list(history.threads[0].messages)
        messages[place - 1] = messages[place - 1]._replace(**changes)  # type: ignore[arg-type] # of any field
        return change_thread(messages=tuple(messages))(history)

    return plant


def restore_between(copied_at: float, restored_at: float) -> Callable[[History], History]:
    """Let the store be taken back to a copy, and nobody show the turns since again."""
    return lambda history: replace(history, restores=(Restore(copied_at, restored_at),))


# thread `a` went on at 9 without what it said since 4.5
HISTORY_WITH_RESTORE = replace(
    restore_between(4.5, 8.5)(SOUND),
    prompts=tuple(
        prompt._replace(marks=("U1", "R1", "U2", "R2", "U5"), noted=frozenset())
        if prompt.said == "U5"
        else prompt
        for prompt in SOUND.prompts
        if prompt.said != "V4"
    ),
    threads=(
        store("a", "U1", "R1", "U2", "R2", "U5", "R5"),
        store("b", "V1", "S1", "V2", "S2"),
        store("gone", "W1", "T1"),
    ),
    readings=(Reading("a", 8.1, 8.2, 1, 30, 0), Reading("a", 10.1, 10.2, 1, 20, 0)),
)

WHOLE = ("U1", "R1", "U2", "R2", "U3", "R3", "U5", "R5")
RANGES = SOUND.threads[0].ranges


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        pytest.param(store_instead(*WHOLE[:2], *WHOLE[4:]), "lost", id="a lost turn"),
        pytest.param(store_instead(*WHOLE[:-1]), "lost", id="a lost reply"),
        pytest.param(
            lambda history: replace(history, threads=history.threads[1:]),
            "lost",
            id="a lost thread",
        ),
        pytest.param(
            lambda history: replace(
                store_instead(*WHOLE[:4], *WHOLE[6:])(history),
                turns=tuple(
                    turn._replace(has_waited=True, reply="R3") if turn.said == "U3" else turn
                    for turn in history.turns
                ),
            ),
            "lost",
            id="a turn that waited",
        ),
        pytest.param(store_instead(*WHOLE, "U5", "R5"), "doubled", id="a doubled turn"),
        pytest.param(
            store_instead(*WHOLE[:6], "U3", "R3", *WHOLE[6:]),
            "doubled",
            id="an unknown turn doubled",
        ),
        pytest.param(
            ask_instead("U5", *WHOLE[:6], "U1", "U5"), "doubled", id="a prompt that repeats"
        ),
        pytest.param(store_instead(*WHOLE, "U4"), "foreign", id="a refused turn that is stored"),
        pytest.param(store_instead(*WHOLE, "V1"), "foreign", id="another thread's message"),
        pytest.param(
            store_instead("U2", "R2", "U1", "R1", *WHOLE[4:]), "disordered", id="two turns swapped"
        ),
        pytest.param(
            store_instead("U1", "U2", "R1", "R2", *WHOLE[4:]), "disordered", id="replies swapped"
        ),
        pytest.param(
            store_instead("R1", "U1", *WHOLE[2:]), "disordered", id="a reply before its question"
        ),
        pytest.param(ask_instead("U5", "U1", "R1", "U5"), "stale", id="a stale prompt"),
        pytest.param(ask_instead("V4", "V4"), "stale", id="a prompt without history"),
        pytest.param(read_also(Reading("a", 11, 12, 1, 12, 1)), "stale", id="a stale read"),
        pytest.param(
            ask_instead("V4", "V1", "S1", "V2", "S2", "V3", "S3", "V4"),
            "taken_back",
            id="a prompt from an old branch",
        ),
        pytest.param(
            ask_instead("V3", "V1", "S1", "V2", "S2", "V3"),
            "taken_back",
            id="what the fork itself took back",
        ),
        pytest.param(
            lambda history: replace(
                history,
                threads=(
                    history.threads[0],
                    store("b", "V1", "S1", "V2", "S2", "V3", "S3", "V4", "S4"),
                ),
            ),
            "taken_back",
            id="an old branch that is live",
        ),
        pytest.param(
            lambda history: replace(
                history,
                threads=(
                    history.threads[0],
                    store("b", "V1", "S1", "V2", "S2", "V3", "S3", "V4", "S4", covered=2),
                ),
                outages=(Outage(5.5, 6.5),),
            ),
            "taken_back",
            id="an old branch that no note covers is live after an outage",
        ),
        pytest.param(change_thread(row_count=2), "broken", id="two rows"),
        pytest.param(change_message(3, chain=b"other"), "broken", id="a broken chain"),
        pytest.param(change_message(3, seq=1), "broken", id="a number used again"),
        pytest.param(
            change_thread(ranges=(RANGES[0], RANGES[1]._replace(after=5))), "broken", id="a gap"
        ),
        pytest.param(
            change_thread(ranges=(RANGES[0], RANGES[1]._replace(after=3))),
            "broken",
            id="an overlap",
        ),
        pytest.param(
            change_thread(ranges=(RANGES[0]._replace(after=1), RANGES[1])),
            "broken",
            id="a beginning that is missing",
        ),
        pytest.param(
            change_thread(ranges=(RANGES[0], RANGES[1]._replace(chain=b"other"))),
            "broken",
            id="notes of another branch",
        ),
        pytest.param(change_thread(tail=(5, 6, 7)), "broken", id="a message in no place"),
        pytest.param(change_thread(coverage=3), "broken", id="a coverage within a range"),
        pytest.param(
            read_also(Reading("a", 11, 12, 1, 21, 0)), "shrunk", id="a generation that fell"
        ),
        pytest.param(
            read_also(Reading("gone", 6, 7, 9, 30, 0, frozenset({"W1"}))),
            "resurrected",
            id="a forgotten text that is read",
        ),
        pytest.param(
            lambda history: replace(
                read_also(Reading("gone", 6, 7, 9, 30, 0, frozenset({"W1"})))(history),
                outages=(Outage(5, 8),),
            ),
            "resurrected",
            id="a forgotten text that did not wait is read in an outage",
        ),
        pytest.param(
            lambda history: replace(history, threads=(*history.threads, store("gone", "W1", "T1"))),
            "resurrected",
            id="a forgotten thread that is stored",
        ),
        pytest.param(lease_also(Lease("b", "one", 100, 200)), "owned_twice", id="two owners"),
        pytest.param(
            lease_also(Lease("a", "three", 203, 303)), "owned_twice", id="an owner that is early"
        ),
        pytest.param(
            change_thread(due_at=AT - MAX_STRANDED_S - 1), "stranded", id="work that is nobody's"
        ),
        pytest.param(
            change_thread(due_at=AT - MAX_STRANDED_S - 1, leased_until=AT - 1),
            "stranded",
            id="work whose lease has ended",
        ),
        pytest.param(
            change_thread(lacks_due_time=True), "stranded", id="work that is due at no time"
        ),
        pytest.param(
            change_thread(lacks_due_time=True, leased_until=AT - 1),
            "stranded",
            id="work that is due at no time since its lease has ended",
        ),
        pytest.param(lambda history: replace(history, deadlocks=1), "deadlocked", id="a deadlock"),
        pytest.param(
            change_message(3, at=AT + 600), "misdated", id="a date by the clock of a host"
        ),
        pytest.param(
            lambda history: replace(
                store_instead(*WHOLE[:2], *WHOLE[4:])(history), outages=(Outage(1.5, 9.5),)
            ),
            "lost",
            id="a turn that an outage has lost",
        ),
    ],
)
def test_a_planted_fault(plant: Callable[[History], History], kind: str) -> None:
    found = check(plant(SOUND))
    assert kind in {name for name, said in vars(found).items() if said}, str(found) or "nothing"


def test_a_restored_store() -> None:
    """What it has lost is no fault, nor what is there again of a thread that was forgotten since."""
    found = check(HISTORY_WITH_RESTORE)
    assert not found, str(found)


RESTORE_OF_STORE = HISTORY_WITH_RESTORE.restores[0]


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        pytest.param(
            ask_instead("U5", "U1", "R1", "U2", "R2", "U3", "U5"),
            "undone",
            id="a prompt that tells of it",
        ),
        pytest.param(
            ask_instead("U5", "U1", "R1", "U2", "R2", "R3", "U5"),
            "undone",
            id="a prompt that tells a reply of it",
        ),
        pytest.param(
            lambda history: replace(
                ask_instead("U5", "U1", "R1", "U2", "R2", "U5")(history),
                prompts=tuple(p._replace(noted=frozenset({"V3"})) for p in history.prompts),
            ),
            "undone",
            id="notes of another thread that tell of it",
        ),
        pytest.param(
            store_instead("U1", "R1", "U2", "R2", "U3", "U5", "R5"), "undone", id="it is live"
        ),
        pytest.param(ask_instead("U5", "U1", "R1", "U5"), "stale", id="a prompt that lacks more"),
        pytest.param(store_instead("U1", "R1", "U5", "R5"), "lost", id="more than it is lost"),
        pytest.param(
            lambda history: replace(
                history, restores=(RESTORE_OF_STORE._replace(restored_at=8.05),)
            ),
            "stale",
            id="a version that falls once the store is restored",
        ),
    ],
)
def test_a_fault_in_a_restored_store(plant: Callable[[History], History], kind: str) -> None:
    found = check(plant(HISTORY_WITH_RESTORE))
    assert kind in {name for name, said in vars(found).items() if said}, str(found) or "nothing"


def test_a_client_that_shows_again_what_the_restored_store_has_lost() -> None:
    shown = replace(
        store_instead("U1", "R1", "U2", "R2", "U3", "R3", "U5", "R5")(HISTORY_WITH_RESTORE),
        turns=tuple(
            turn._replace(shows=("U1", "R1", "U2", "R2", "U3", "R3")) if turn.said == "U5" else turn
            for turn in HISTORY_WITH_RESTORE.turns
        ),
    )
    found = check(ask_instead("U5", "U1", "R1", "U2", "R2", "U3", "R3", "U5")(shown))
    assert not found, str(found)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda history: replace(
                history,
                threads=(
                    history.threads[0],
                    store("b", "V1", "S1", "V2", "S2", "V3", "S3", "V4", "S4", covered=4),
                ),
                prompts=(
                    *history.prompts[:-2],
                    history.prompts[-2]._replace(noted=frozenset({"V2", "S2"})),
                    history.prompts[-1],
                ),
                outages=(Outage(5.5, 6.5),),
            ),
            id="an old branch that notes cover, after an outage",
        ),
        pytest.param(
            lambda history: replace(
                read_also(Reading("gone", 6, 7, 9, 30, 0, frozenset({"W2"})))(history),
                turns=(*history.turns, Turn("gone", "W2", 3, 4, "unknown")),
                forgettings=(Forgetting(frozenset({"W1", "T1", "W2"}), 5.0),),
                outages=(Outage(5, 8),),
            ),
            id="a forgotten text that waits in a process without the store",
        ),
        pytest.param(
            store_instead(*WHOLE[:4], *WHOLE[6:]), id="an unknown turn that is not stored"
        ),
        pytest.param(store_instead(*WHOLE[:5], *WHOLE[6:]), id="an unknown turn without its reply"),
        pytest.param(
            lambda history: replace(
                store_instead("U1", "U2", "R1", "R2", *WHOLE[4:])(history),
                turns=(
                    history.turns[0]._replace(ended_at=4),
                    history.turns[1]._replace(began_at=1),
                    *history.turns[2:],
                ),
            ),
            id="two turns at once whose replies follow both",
        ),
        pytest.param(change_thread(due_at=AT - MAX_STRANDED_S + 1), id="work that is due since"),
        pytest.param(
            change_thread(due_at=AT - 2 * MAX_STRANDED_S, leased_until=AT + 1), id="work under way"
        ),
        pytest.param(
            change_thread(lacks_due_time=True, leased_until=AT + 1),
            id="work under way that is due at no time",
        ),
        pytest.param(
            lambda history: replace(ask_instead("U5", "U5")(history), outages=(Outage(1.5, 9.5),)),
            id="a prompt in an outage, of a process that lacks what others have not stored yet",
        ),
        pytest.param(
            read_also(Reading("a", 4.0, 10.3, 1, 12, 0)), id="a read that began before a commit"
        ),
        pytest.param(
            lambda history: replace(
                ask_instead("U5", "U5")(history),
                turns=tuple(
                    turn._replace(has_memory=False) if turn.said == "U5" else turn
                    for turn in history.turns
                ),
            ),
            id="a prompt whose receipt says that memory failed",
        ),
        pytest.param(
            lambda history: replace(
                ask_instead("U5", "U5")(history),
                turns=tuple(
                    turn._replace(outcome="unknown", reply="", has_receipt=False)
                    if turn.said == "U5"
                    else turn
                    for turn in history.turns
                ),
            ),
            id="a prompt of a process that was killed before it sent a receipt",
        ),
    ],
)
def test_what_is_no_fault(change: Callable[[History], History]) -> None:
    found = check(change(SOUND))
    assert not found, str(found)
