"""The whole engine in 36 small worlds, 180 with OM_TEST_LONG=all: nothing is lost, doubled or shown in the wrong place,
whatever happens when."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Unusable
from om_proxy.memory.lifecycle import branch, transitions
from om_proxy.memory.model import Memory, Observation
from om_proxy.memory.notes.observations import ParsedNotes, parse_observation
from tests.simulation.process import (
    WatchedBackground,
    WatchedClosing,
    WatchedEngine,
    WatchedGuard,
    WatchedWorker,
)
from tests.simulation.world import World, simulate
from tests.support.long_forms import IS_LONG

# those below are judged where they are counted
LOOKED_AT_SEEDS = 60 if IS_LONG else 24
SEED_COUNT = int(os.environ.get("OM_SIMULATION_SEEDS", "120" if IS_LONG else "12"))
FIRST_SEED = int(os.environ.get("OM_SIMULATION_FIRST_SEED", f"{LOOKED_AT_SEEDS}"))
BATCH_SEEDS = 50
PROCESS_SEEDS = 6 if IS_LONG else 2
FOUND_WITHIN = 100  # seeds
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEED_COUNT, BATCH_SEEDS))
def test_no_seed_breaks_a_promise(first: int) -> None:
    """Every invariant of oracle.py after every commit, prompt and turn, and once more when all has
    settled."""
    for seed in range(first, min(first + BATCH_SEEDS, FIRST_SEED + SEED_COUNT)):
        world = simulate(seed)
        assert world.broken is None, (
            f"{world.broken}\nalone and step by step: scripts/simulate --seed {seed} --trace"
        )


def test_the_worlds_are_full_of_trouble() -> None:
    """A simulation in which nothing happens proves nothing."""
    worlds = [simulate(seed) for seed in range(LOOKED_AT_SEEDS)]
    assert [world.broken for world in worlds if world.broken is not None] == []
    cases = sum((Counter(world.cases) for world in worlds), Counter())
    assert cases.keys() >= {
        "first",
        "extend",
        "retry",
        "rewind",
        "edit",
        "switch",
        "trimmed",
        "delta",
    }
    told = Counter(word for world in worlds for line in world.trace for word in marks(line))
    assert told.keys() >= {
        "crash", "hangs", "twice", "tabs", "empty", "prose", "refusal", "loop", "never", "late", "busy", "storage",
        "observer", "reflector", "observer-late", "observer-failing", "upstream-refused", "shows",
    }  # fmt: skip
    memories = [thread.memory() for world in worlds for thread in world.disk.threads.values()]
    assert sum(memory.log.generation > 0 for memory in memories) > LOOKED_AT_SEEDS / 3
    assert sum(memory.coverage > 0 for memory in memories) > LOOKED_AT_SEEDS * 5 / 6


def marks(line: str) -> list[str]:
    return line.split()[1:]


# ── the same seed, the same run ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "watched",
    [WatchedBackground, WatchedClosing, WatchedEngine, WatchedGuard, WatchedWorker],
)
def test_what_is_watched_is_called(watched: type) -> None:
    """A method of another name than the server's own would watch nothing."""
    own = {name for name, value in vars(watched).items() if callable(value)} - {"_watched"}
    assert [name for name in own if not hasattr(watched.__base__, name)] == []


def test_a_seed_is_one_run() -> None:
    """Twice in one process, with others between: the same steps at the same times."""
    first = simulate(7).trace
    simulate(8)
    assert simulate(7).trace == first
    assert len(first) > 100


def test_a_seed_is_one_run_in_every_process() -> None:
    """However Python hashes its strings."""
    # as tests/conftest.py has it in this process
    program = (
        "from om_proxy.edge import chat; chat.MAX_OPEN_S = 60.0; "
        "from tests.simulation.world import simulate; "
        f"print(*(simulate(seed).digest() for seed in range({PROCESS_SEEDS})))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {" ".join(simulate(seed).digest() for seed in range(PROCESS_SEEDS)) + "\n"}


# ── planted bugs ──────────────────────────────────────────────────────────────────────────────────


def without_version_check(world: World) -> None:
    world.disk.checks_version = False


def an_empty_answer_is_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage advances although nothing was noted."""

    def lenient(answer: str, **more: Any) -> ParsedNotes:
        try:
            return parse_observation(answer, **more)
        except Unusable:
            return ParsedNotes("* nothing")

    monkeypatch.setattr("om_proxy.agents.observer.parse_observation", lenient)


def a_chunk_is_taken_without_looking_at_the_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = transitions.add_chunk

    def careless(memory: Memory, chunk: Observation) -> Memory:
        last = next((m for m in memory.tail if m.seq >= chunk.last), None)
        return kept(
            memory, chunk if last is None else replace(chunk, chain=last.chain, last=last.seq)
        )

    monkeypatch.setattr(transitions, "add_chunk", careless)


def calls_are_cut_from_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "om_proxy.memory.blocks.find_closed_ends", lambda messages: tuple(range(len(messages)))
    )


def a_fork_leaves_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client takes back what is observed, and the notes of it stay."""
    monkeypatch.setattr(
        branch, "find_rollback_target", lambda memory, cut, older, live: (memory.log.entries, None)
    )


PLANTED = [
    (0, an_empty_answer_is_an_observation),
    (0, a_chunk_is_taken_without_looking_at_the_branch),
    (0, a_fork_leaves_the_log),
    (0 if IS_LONG else 7, calls_are_cut_from_their_results),
]  # the first seed that is tried: a bug that shows in few of them shows soon from there


@pytest.mark.parametrize(("first", "plant"), PLANTED)
def test_a_planted_bug_is_found(
    first: int, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 100 seeds."""
    plant(monkeypatch)
    assert found(first=first) is not None


def test_a_store_that_checks_no_version_is_found() -> None:
    """Within 100 seeds: of two turns that commit at once one writes over the other."""
    assert found(without_version_check) is not None


def found(change: Callable[[World], None] = lambda world: None, first: int = 0) -> int | None:
    """The first seed that breaks."""
    seeds = range(first, first + FOUND_WITHIN)
    return next((seed for seed in seeds if simulate(seed, change).broken is not None), None)
