"""The keys that a process holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import UnopenedText
from om_proxy.memory.model import Memory
from om_proxy.storage.encryption.keyring import KEY_HELD_S, SWEEP_INTERVAL_S, Keyring
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.encryption.row_cipher import PLAIN, WrappedKey
from tests.storage.memory_builder import KEY

MASTERS = MasterKeys([bytes(32)])


class Keys:
    """Wrapped keys in a dictionary, which counts what is read."""

    def __init__(self, count: int, masters: MasterKeys | None = MASTERS, max_keys: int = 10):
        self.stored = {key.id: key for key in (MASTERS.create_key().stored for _ in range(count))}
        self.ids = list(self.stored)
        self.read: list[bytes] = []
        self.ring = Keyring(self.select, masters, max_keys)

    async def select(self, connection: Any, ids: Sequence[bytes]) -> list[WrappedKey]:
        self.read += ids
        return [self.stored[id_] for id_ in ids if id_ in self.stored]


async def test_a_key_is_read_once() -> None:
    keys = Keys(3)
    for _ in range(2):
        held = await keys.ring.hold(None, [*keys.ids, None])
        assert [held.find(id_).key_id for id_ in keys.ids] == keys.ids
    assert sorted(keys.read) == sorted(keys.ids)


async def test_more_keys_than_are_held_are_there_for_one_piece_of_work() -> None:
    keys = Keys(5, max_keys=2)
    held = await keys.ring.hold(None, keys.ids)
    assert len(keys.ring) == 2
    for id_ in keys.ids:
        assert held.find(id_).seal(b"message", 1, b"raw", b"x")


async def test_a_dropped_key_is_gone_from_the_process() -> None:
    keys = Keys(1)
    await keys.ring.hold(None, keys.ids)
    keys.ring.drop([*keys.ids, None])
    assert len(keys.ring) == 0
    keys.stored.clear()
    held = await keys.ring.hold(None, keys.ids)
    with pytest.raises(UnopenedText, match="the key of this thread is gone"):
        held.find(keys.ids[0]).open(b"message", 1, b"raw", b"x")


async def test_a_key_that_is_dropped_while_it_is_read_is_not_held() -> None:
    """The thread is forgotten between the look for its key and the answer."""
    keys = Keys(2)
    select = keys.ring._select_wrapped

    async def select_slowly(connection: Any, ids: Sequence[bytes]) -> Sequence[WrappedKey]:
        found = await select(connection, ids)
        keys.ring.drop(keys.ids[:1])
        return found

    keys.ring._select_wrapped = select_slowly
    held = await keys.ring.hold(None, keys.ids)
    assert held.find(keys.ids[0]).seal(b"message", 1, b"raw", b"x")
    assert set(keys.ring._held) == set(keys.ids[1:])


async def test_one_key_that_does_not_open_leaves_the_others() -> None:
    keys = Keys(2)
    broken, whole = keys.ids
    keys.stored[broken] = keys.stored[broken]._replace(wrapped=b"\x01" + bytes(60))
    held = await keys.ring.hold(None, keys.ids)
    assert held.find(whole).seal(b"message", 1, b"raw", b"x")
    with pytest.raises(UnopenedText):
        held.find(broken).open(b"message", 1, b"raw", b"x")


async def test_without_a_master_key_an_encrypted_memory_says_what_is_missing() -> None:
    keys = Keys(1, masters=None)
    held = await keys.ring.hold(None, [*keys.ids, None])
    assert held.find(None) is PLAIN
    with pytest.raises(UnopenedText, match="set storage"):
        held.find(keys.ids[0]).open(b"message", 1, b"raw", b"x")


async def test_a_key_is_held_for_ten_minutes() -> None:
    """Then it is read again: another process may have forgotten its memory."""
    keys, now = Keys(1), 1_000.0
    keys.ring._clock = lambda: now
    await keys.ring.hold(None, keys.ids)
    keys.ring.note_row(7, 3, keys.ids[0])
    now += KEY_HELD_S - 1
    await keys.ring.hold(None, keys.ids)
    assert len(keys.read) == 1
    now += 1
    assert keys.ring.find_row(Memory(key=KEY, version=3, row_id=7)) is None
    assert len(keys.ring) == 0
    await keys.ring.hold(None, keys.ids)
    assert len(keys.read) == 2


async def test_a_key_that_nobody_asks_for_leaves_the_process_as_soon() -> None:
    """Nothing reads a thread any more that another process has forgotten."""
    keys, now, loop = Keys(2), 1_000.0, asyncio.get_running_loop()
    keys.ring._clock = lambda: now

    def end_timer() -> None:
        """Do what happens at the end of the time that the ring waits for."""
        assert keys.ring._sweep
        assert keys.ring._sweep.when() <= loop.time() + SWEEP_INTERVAL_S
        keys.ring._sweep.cancel()
        keys.ring._sweep_held()

    await keys.ring.hold(None, keys.ids[:1])
    now += KEY_HELD_S / 2
    await keys.ring.hold(None, keys.ids[1:])
    end_timer()
    assert len(keys.ring) == 2
    now += KEY_HELD_S / 2 - SWEEP_INTERVAL_S / 2  # the next look comes too late
    end_timer()
    assert set(keys.ring._held) == set(keys.ids[1:])
    now += KEY_HELD_S / 2
    end_timer()
    assert len(keys.ring) == 0
    assert keys.ring._sweep is None  # an idle process has nothing to look at


async def test_a_closed_store_holds_no_key() -> None:
    keys = Keys(2)
    await keys.ring.hold(None, keys.ids)
    keys.ring.close()
    assert (len(keys.ring), keys.ring._sweep) == (0, None)


async def test_a_row_that_is_gone_or_has_another_key_takes_its_key_along() -> None:
    keys = Keys(3)
    await keys.ring.hold(None, keys.ids)
    keys.ring.note_row(7, 3, keys.ids[0])
    keys.ring.note_row(7, 4, keys.ids[0])
    assert len(keys.ring) == 3
    keys.ring.note_row(7, 5, keys.ids[1])
    assert set(keys.ring._held) == set(keys.ids[1:])
    keys.ring.drop_row(7)
    keys.ring.drop_row(8)
    assert set(keys.ring._held) == set(keys.ids[2:])


async def test_a_row_is_known_with_the_version_that_was_noted() -> None:
    """A memory that gets another key gets another version."""
    keys = Keys(1)
    await keys.ring.hold(None, keys.ids)
    keys.ring.note_row(7, 3, keys.ids[0])
    memory = Memory(key=KEY, version=3, row_id=7)
    held = keys.ring.find_row(memory)
    assert held is not None
    assert held.row.key_id == keys.ids[0]
    assert keys.ring.find_row(replace(memory, version=4)) is None
    keys.ring.forget_row(7)
    assert keys.ring.find_row(memory) is None


async def test_a_new_memory_gets_a_key_and_a_text_about_others_one_of_its_own() -> None:
    keys = Keys(0)
    before = Memory(key=KEY)
    held = keys.ring.find_row(before)
    assert held is not None
    plain = keys.ring.plan_commit(before, replace(before, turns=1), held)
    assert [key.id for key in plain.new_keys] == [plain.key_id]
    told = replace(before, scope="resource", other_threads_text="they said")
    planned = keys.ring.plan_commit(before, told, held)
    assert [key.id for key in planned.new_keys] == [
        planned.ciphers.row.key_id,
        planned.ciphers.others.key_id,
    ]


def test_without_encryption_a_commit_makes_no_key() -> None:
    keys = Keys(0, masters=None)
    before = Memory(key=KEY)
    held = keys.ring.find_row(before)
    assert held is not None
    assert keys.ring.plan_commit(before, replace(before, turns=1), held).new_keys == ()
