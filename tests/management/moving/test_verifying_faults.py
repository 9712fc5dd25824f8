"""Faults of a stored thread are found, and computed anew where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.management.moving.thread_records import load_rows
from om_proxy.management.moving.verifying import (
    find_lasting_faults,
    find_message_faults,
    find_repairable_faults,
    repair_thread,
)
from om_proxy.memory.model import Memory
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.stored_rows import WholeThread
from om_proxy.storage.whole_threads import read_whole_thread
from tests.storage.contract import MOVES, Step
from tests.storage.memory_builder import KEY, MemoryBuilder


async def build(steps: Sequence[Step]) -> WholeThread:
    store = await SqliteStore.open(":memory:")
    try:
        thread, memory = MemoryBuilder(), Memory(key=KEY)
        for step in steps:
            step(thread)
            memory = await store.commit(memory, thread.memory())
        whole = await read_whole_thread(store, KEY)
        assert whole
        return whole
    finally:
        await store.close()


@pytest.mark.parametrize("steps", MOVES.values(), ids=MOVES)
async def test_what_a_store_keeps_has_no_fault(steps: Sequence[Step]) -> None:
    """Whatever became of the thread; and a repair changes nothing of it."""
    whole = await build(steps)
    assert find_repairable_faults(whole) == []
    assert find_lasting_faults(whole) == []
    assert repair_thread(whole) == whole


def with_memory(**changes: object) -> Callable[[WholeThread], WholeThread]:
    return lambda whole: whole._replace(memory=replace(whole.memory, **changes))


def with_message(number: int, **changes: object) -> Callable[[WholeThread], WholeThread]:
    def change(whole: WholeThread) -> WholeThread:
        rows = list(whole.messages)
        parent = changes.get("parent", rows[number].parent)
        fields = {name: value for name, value in changes.items() if name != "parent"}
        message = replace(rows[number].message, **fields)
        rows[number] = rows[number]._replace(message=message, parent=parent)
        return whole._replace(messages=tuple(rows))

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (with_message(2, chain=bytes(16)), "a chain does not follow"),
        (with_message(2, parent=1), "names another parent"),
        (with_memory(covered_count=99), "counts of covered messages"),
        (with_memory(covered_tokens=0), "counts of covered messages"),
        (with_memory(next_seq=3), "next message"),
        (with_memory(next_id=1), "next note"),
    ],
)
async def test_damage_is_found_and_repaired(
    damage: Callable[[WholeThread], WholeThread], said: str
) -> None:
    whole = await build(MOVES["a log and chunks"])
    [fault] = find_repairable_faults(damage(whole))
    assert said in fault
    assert repair_thread(damage(whole)) == whole


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (with_message(0, parent=77), "a parent that is not stored"),
        (lambda whole: whole._replace(observations=whole.observations[1:]), "a note that is not"),
    ],
)
async def test_what_nobody_can_compute_is_told(
    damage: Callable[[WholeThread], WholeThread], said: str
) -> None:
    whole = await build(MOVES["a log and chunks"])
    assert any(said in fault for fault in find_lasting_faults(damage(whole)))


async def test_a_message_that_a_note_covers_stands_in_no_prompt() -> None:
    whole = await build(MOVES["a log and chunks"])
    damaged = with_memory(coverage=4)(whole)
    assert (
        "its notes reach message 5, and prompts leave out messages up to 4"
        in find_repairable_faults(damaged)
    )
    assert repair_thread(damaged) == whole


async def test_messages_that_no_note_covers_return_to_prompts() -> None:
    """Notes that a generation does not name are in no prompt. A chunk beyond a gap is made anew."""
    whole = await build(MOVES["a log and chunks"])
    generations = tuple(g._replace(entries=()) for g in whole.generations)
    without_notes = load_rows(whole._replace(generations=generations))
    assert without_notes.memory.tail[0].seq > 1
    [fault] = find_repairable_faults(without_notes)
    assert "notes reach message 0" in fault
    repaired = repair_thread(without_notes).memory
    assert [m.seq for m in repaired.tail] == [
        s.message.seq for s in whole.messages if s.state == "live"
    ]
    assert (repaired.coverage, repaired.covered_count, repaired.chunks) == (0, 0, ())


@pytest.mark.parametrize(
    "raw",
    [b"no json", b"[]", b"3", b"\xff\xfe", b'{"role":3}', b'{"role":"tool","content":"x"}', b"{"],
)
async def test_a_message_that_is_none_becomes_the_text_of_one(raw: bytes) -> None:
    """What was stored stays readable, and its client's message is still known as it."""
    whole = await build(MOVES["a log and chunks"])
    before = whole.messages[1].message
    damaged = with_message(1, item=replace(before.item, raw=raw))(whole)
    assert find_message_faults(damaged) == [f"message {before.seq} is not what its JSON says"]
    repaired = repair_thread(damaged)
    assert find_message_faults(repaired) + find_repairable_faults(repaired) == []
    item = repaired.messages[1].message.item
    assert item.fp == before.item.fp
    assert orjson.loads(item.raw)["content"] in (raw.decode("utf-8", "replace"), "x")


async def test_a_message_is_what_its_json_says() -> None:
    """A row's role, calls and answers decide what may stand beside what; its JSON goes upstream."""
    whole = await build(MOVES["a log and chunks"])
    item = whole.messages[1].message.item
    damaged = with_message(1, item=replace(item, role="tool", answers="call_1"))(whole)
    assert len(find_message_faults(damaged)) == 1
    assert repair_thread(damaged) == whole


async def test_a_message_of_an_api_that_is_not_known_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A newer release wrote it, and reads it."""
    whole = await build(MOVES["a log and chunks"])
    item = replace(whole.messages[1].message.item, raw=b"[]", api="messages")
    monkeypatch.setattr("om_proxy.management.moving.verifying.API_NAMES", ("chat",))
    other = with_message(1, item=item)(whole)
    assert find_message_faults(other) + find_repairable_faults(other) == []
    assert repair_thread(other) == other
