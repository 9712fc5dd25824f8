"""Small worlds in which threads share a log: nobody loses anything by it, and nobody's
words become another's."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.model import RESOURCE_THREAD, Memory, Observation, Part, replace_log
from om_proxy.memory.notes import sections
from tests.simulation.sharing import SharedWorld, plan_of
from tests.simulation.world import World, simulate
from tests.support.long_forms import IS_LONG

SEED_COUNT = int(os.environ.get("OM_SHARING_SEEDS", "50" if IS_LONG else "25"))
# test_people.py judges those below
FIRST_SEED = int(os.environ.get("OM_SIMULATION_FIRST_SEED", "24"))
BATCH_SEEDS = 25
FOUND_WITHIN = 10  # seeds
# in three of them a batch leaves a thread out, which is rare
SEEDS_WITHOUT_PEOPLE = range(20, 40)


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEED_COUNT, BATCH_SEEDS))
def test_no_seed_breaks_a_promise(first: int) -> None:
    """After every commit, prompt and turn, and once more when all has settled."""
    for seed in range(first, min(first + BATCH_SEEDS, FIRST_SEED + SEED_COUNT)):
        world = simulate(seed, made=SharedWorld)
        assert world.broken is None, (
            f"{world.broken}\nalone and step by step: scripts/simulate --scope resource --seed {seed} --trace"
        )


def test_the_worlds_share_much() -> None:
    """Threads observed together and left out, entries settled, reflections over several threads,
    forks: all of it occurs."""
    worlds = [
        simulate(
            seed,
            plan=dataclasses.replace(plan_of(Random(seed)), people=0),
            made=SharedWorld,
        )
        for seed in SEEDS_WITHOUT_PEOPLE
    ]
    told = Counter(
        word
        for world in worlds
        for line in world.trace
        for word in ("ObserveBatch twice", "left out", "crash")
        if word in line
    )
    assert told.keys() == {"ObserveBatch twice", "left out", "crash"}
    cases = sum((Counter(world.cases) for world in worlds), Counter())
    assert cases.keys() >= {"first", "extend", "retry", "edit", "trimmed", "delta"}
    shared_logs = [
        rows.memory()
        for world in worlds
        for key, rows in world.disk.threads.items()
        if key.thread == RESOURCE_THREAD
    ]
    assert len(shared_logs) == len(worlds)
    assert (
        sum(any(len(o.parts) > 1 for o in shared_log.log.entries) for shared_log in shared_logs) > 5
    )
    assert (
        sum(
            len({p.label for o in shared_log.log.entries for p in o.parts}) > 1
            for shared_log in shared_logs
        )
        > 10
    )


# ── planted bugs ──────────────────────────────────────────────────────────────────────────────────


def a_fork_leaves_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        log_sharing,
        "remove_taken_back",
        lambda memory, cut, older, live: (memory.log.entries, False),
    )


def a_fork_takes_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have in a reflection that is taken back goes with it."""
    kept = log_sharing.remove_taken_back

    def careless(
        memory: Memory, cut: int, older: object, live: object
    ) -> tuple[tuple[Observation, ...], bool]:
        log, forgotten = kept(memory, cut, older, live)  # type: ignore[arg-type] # passed on as they came
        return (log if log == memory.log.entries else log[:1]), forgotten

    monkeypatch.setattr(log_sharing, "remove_taken_back", careless)


def threads_are_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an answer says of one thread is kept as another's."""
    kept = sections.split_by_thread

    def swapped(answer: str, labels: object) -> dict[str, str]:
        said = kept(answer, labels)  # type: ignore[arg-type] # passed on as it came
        return dict(zip(said, reversed(said.values()), strict=True))

    monkeypatch.setattr(sections, "split_by_thread", swapped)


def a_reflection_forgets_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(sources: tuple[Observation, ...]) -> tuple[Part, ...]:
        return tuple({part.label: part for o in sources for part in o.parts}.values())

    monkeypatch.setattr(log_sharing, "merge_parts", newest)


def entries_keep_the_ids_of_their_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = log_sharing.append_entries

    def careless(memory: Memory, entries: tuple[Observation, ...]) -> Memory:
        made = kept(memory, entries)
        before = len(memory.log.entries)
        own = tuple(
            replace(o, id=e.id) for o, e in zip(made.log.entries[before:], entries, strict=True)
        )
        return replace_log(made, entries=made.log.entries[:before] + own)

    monkeypatch.setattr(log_sharing, "append_entries", careless)


PLANTED = [
    a_fork_leaves_the_log,
    a_fork_takes_everybodys,
    threads_are_mixed_up,
    a_reflection_forgets_where_it_began,
    entries_keep_the_ids_of_their_chunks,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert found() is not None


def test_a_store_that_checks_no_version_is_found() -> None:
    """Of two threads that change the log at once one writes over the other."""

    def without_version_check(world: World) -> None:
        world.disk.checks_version = False

    assert found(without_version_check) is not None


def found(change: Callable[[World], None] = lambda world: None) -> int | None:
    """The first seed that breaks."""
    seeds = range(FOUND_WITHIN)
    return next(
        (seed for seed in seeds if simulate(seed, change, made=SharedWorld).broken is not None),
        None,
    )
