"""Measure what encryption costs a turn and a whole thread's load: an SQLite file without a key beside
one with a key, in turns.

    scripts/bench encryption [--rounds 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop
from msgspec.structs import replace

from om_proxy.memory.model import Memory
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder, item

TURN_CHARS = 2_000  # of each of the two messages of a turn
LOADED_MESSAGES, LOADED_CHARS = 30, 2_000
NOTES, NOTE_CHARS = 20, 1_000
LOADED = KEY._replace(thread="loaded")


class Sample(NamedTuple):
    wall_s: float
    cpu_s: float  # of this process, its threads too


# by what was measured, and by store
Samples = Mapping[tuple[str, str], list[Sample]]


async def time_work(work: Awaitable[Memory], samples: list[Sample]) -> Memory:
    began, cpu_began = time.perf_counter(), time.process_time()
    memory = await work
    samples.append(Sample(time.perf_counter() - began, time.process_time() - cpu_began))
    return memory


async def store_loaded(store: SqliteStore) -> Memory:
    """Store a thread with a long tail and many notes."""
    thread = MemoryBuilder(LOADED).chat(NOTES)
    for number in range(LOADED_MESSAGES):
        role = "assistant" if number % 2 else "user"
        thread.say(item(f"{number} " + "x" * LOADED_CHARS, role))
    before = await store.commit(Memory(key=LOADED), thread.memory())
    for _ in range(NOTES):
        thread.cover(1)
    thread.log = tuple(replace(entry, text="n" * NOTE_CHARS) for entry in thread.log)
    return await store.commit(before, thread.memory(before.version, before.row_id))


async def run(folder: Path, rounds: int) -> Samples:
    stores = {
        "without a key": await SqliteStore.open(folder / "plain.db"),
        "with a key": await SqliteStore.open(folder / "sealed.db", masters=MasterKeys([bytes(32)])),
    }
    samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    try:
        loaded = {name: await store_loaded(store) for name, store in stores.items()}
        held = dict.fromkeys(stores, Memory(key=KEY))
        thread = MemoryBuilder(KEY)
        for number in range(rounds):
            for role in ("user", "assistant"):
                thread.say(item(f"{number} {role} " + "x" * TURN_CHARS, role))
            for name, store in stores.items():
                after = thread.memory(held[name].version, held[name].row_id)
                commit = store.commit(held[name], after)
                held[name] = await time_work(commit, samples["a turn of 4 KB is stored", name])
                load = store.load(LOADED)
                read = await time_work(load, samples["a thread of 60 KB and notes is read", name])
                assert read == loaded[name]
    finally:
        await asyncio.gather(*(store.close() for store in stores.values()))
    return samples


def print_samples(samples: Samples) -> None:
    """Print the medians. The last column compares the CPU."""
    print("| | without a key ms | with ms | our CPU without ms | with ms | |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for what in dict.fromkeys(what for what, _ in samples):
        pair: Sequence[list[Sample]] = [taken for (of, _), taken in samples.items() if of == what]
        walls = [statistics.median(sample.wall_s for sample in taken) * 1e3 for taken in pair]
        cpus = [statistics.median(sample.cpu_s for sample in taken) * 1e3 for taken in pair]
        cells = " | ".join(f"{figure:.3f}" for figure in (*walls, *cpus))
        print(f"| {what} | {cells} | {(cpus[1] / cpus[0] - 1) * 100:+.0f} % |")


def main() -> None:
    asked = argparse.ArgumentParser(prog="scripts/bench encryption", description=__doc__)
    asked.add_argument("--rounds", type=int, default=200)
    given = asked.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print_samples(uvloop.run(run(Path(folder), given.rounds)))


if __name__ == "__main__":
    main()
