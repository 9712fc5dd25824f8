"""What every store promises, as tests: a backend's test class inherits them and gives the fixture
`opener`.

`opener` is an async function that opens one more Store on the same storage, which is empty when the
test begins.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.memory.events.parts import Event, Forgotten
from om_proxy.memory.lifecycle import edits, log_sharing, transitions, withdrawal
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    RECENT_MARKS,
    RESOURCE_THREAD,
    Failures,
    Item,
    Key,
    Memory,
    Message,
    Scope,
    extend_chain,
    replace_log,
    resource_key,
)
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.contract.status import Durability, Erasure, StoreTotals
from om_proxy.storage.promises import list_promises
from om_proxy.storage.values.changes import Change, MoveResult, NoteErasure, ResourceWakeup
from om_proxy.storage.values.records import ForgetResult
from om_proxy.storage.values.stored_rows import summarize_generation
from om_proxy.wire.apis.json_text import replace_halves
from tests.memory import sharing
from tests.memory.building import item as item_of
from tests.storage import memory_builder
from tests.storage.event_contract import (
    NOW,
    ODD_TEXTS,
    OTHER_TENANT_KEY,
    EventContract,
    moved_fingerprint,
)
from tests.storage.generations_contract import GenerationsContract
from tests.storage.idle_contract import IdleContract
from tests.storage.ledger_contract import LedgerContract
from tests.storage.listing_contract import ListingContract
from tests.storage.memory_builder import (
    KEY,
    MemoryBuilder,
    full_item,
    full_thread,
    item,
    small_things,
    store_covered,
)
from tests.storage.moving_contract import MovingContract
from tests.storage.people_machine import PEOPLE, PeopleMachine
from tests.storage.race_contract import RaceContract
from tests.storage.records_contract import RecordsContract
from tests.storage.refresh_contract import RefreshContract
from tests.storage.search_contract import SearchContract
from tests.storage.shared_machine import SHARED, SharedMachine, SharedStore, share_log
from tests.storage.store_machine import MACHINE, Opener, StoreMachine
from tests.storage.vector_contract import VectorContract

ODD = {
    "nul": b'{"role":"user","content":"a\x00b"}',
    "escaped nul": b'{"role":"user","content":"\\u0000"}',
    "lone surrogate": b'{"role":"user","content":"\\ud800"}',
    "raw surrogate": b'{"content":"\xed\xa0\x80"}',
    "not utf-8": b"\xff\xfe\x00",
    "huge number": b'{"n":1e999,"m":123456789012345678901234567890,"x":NaN}',
    "twice the key": b'{"a":1,"a":2}',
    "empty": b"",
}


async def read_everything(store: Store, key: Key) -> tuple[Any, ...]:
    """Return everything that a store returns about a thread."""
    outline = await store.outline(key)
    every = await store.messages_by_seq(key, range(1, 200))
    return (
        await store.load(key),
        outline,
        every,
        await store.stored_messages(key, 0, limit=1_000),
        await store.generations(key, 1_000),
        await store.threads(key.tenant),
    )


def moved_item(text: str, role: str = "user", **more: Any) -> Item:
    one = item(text, role, **more)
    return replace(one, fp=moved_fingerprint(one.raw, one.api))


Step = Callable[[MemoryBuilder], object]
MOVES: dict[str, Sequence[Step]] = {
    "a tail": (lambda t: t.chat(5),),
    "a log and chunks": (lambda t: t.chat(9), lambda t: t.cover(3).cover(2).chunk(2)),
    "a reflection in the making": (lambda t: t.chat(9), lambda t: t.cover(3).keep_reflection()),
    "a reflection": (
        lambda t: t.chat(9),
        lambda t: t.cover(3).cover(2),
        lambda t: t.swap_reflection().chunk(2),
    ),
    "a fork": (lambda t: t.chat(6), lambda t: t.supersede([4, 5, 6]).chat(3, "instead")),
    "a fork of what was observed": (
        lambda t: t.chat(8),
        lambda t: t.cover(4).cover(2),
        lambda t: t.supersede([6, 7, 8]).chat(3, "instead"),
    ),
    "back on an older branch": (
        lambda t: t.chat(6),
        lambda t: t.supersede([5, 6]).chat(2, "instead"),
        lambda t: t.revive(6),
    ),
    "the client's own version": (
        lambda t: t.chat(6),
        lambda t: t.swap(4, memory_builder.message("altered", "assistant")),
        lambda t: t.chunk(4),
    ),
    "an undo": (
        lambda t: t.chat(8),
        lambda t: t.cover(4),
        lambda t: t.swap_reflection(),
        lambda t: t.undo_reflection(0),
    ),
}


def small_things_with_attempt(thread: MemoryBuilder) -> dict[str, Any]:
    """Return the small things, with an attempt that showed the whole transcript."""
    more, memory = small_things(), thread.memory()
    whole = replace(more["views"][0], count=memory.count, chain=memory.chain)
    return more | {"views": (*more["views"], whole)}


class StoreContract(
    RefreshContract,
    LedgerContract,
    IdleContract,
    GenerationsContract,
    ListingContract,
    RecordsContract,
    EventContract,
    MovingContract,
    RaceContract,
    SearchContract,
    VectorContract,
):
    durable = True  # whether a second store opened on the same storage sees the same
    # of the examples of each machine, one in so many is tried
    thinned = 1

    def _thin(self, machine: settings) -> settings:
        return settings(machine, max_examples=max(1, machine.max_examples // self.thinned))

    @pytest.fixture
    async def another(self, opener: Opener) -> AsyncIterator[Opener]:
        """Return the opener, and close at the end what it opened. A store left open keeps its
        threads, and the test run with them."""
        async with AsyncExitStack() as stack:

            async def open_store() -> Store:
                store = await opener()
                stack.push_async_callback(store.close)
                return store

            yield open_store

    @pytest.fixture
    async def store(self, another: Opener) -> Store:
        return await another()

    # ── delivered ──

    async def test_what_went_out_is_remembered(self, store: Store, another: Opener) -> None:
        """The seq of each thread's newest delivered reply only grows, changes no version and
        outlives the process."""
        other = KEY._replace(thread="other thread")
        for key in (KEY, other, OTHER_TENANT_KEY):
            await store.commit(Memory(key=key), replace(Memory(key=key), turns=1))
        version = await store.version(KEY)
        assert await store.delivered_reply(KEY) is None
        await store.mark_delivered({KEY: 2, other: 2, Key("nobody", "no", "no"): 9})
        await store.mark_delivered({KEY: 1})
        found = store if not self.durable else await another()
        told = [
            await found.delivered_reply(key)
            for key in (KEY, other, OTHER_TENANT_KEY, Key("nobody", "no", "no"))
        ]
        assert told == [2, 2, None, None]
        assert await store.version(KEY) == version

    # ── load, version ──

    async def test_unknown_thread_is_an_empty_memory(self, store: Store) -> None:
        """An unknown thread loads as `Memory(key=key)` and has version 0, empty lists and nothing
        to forget."""
        assert await store.load(KEY) == Memory(key=KEY)
        assert await store.version(KEY) == 0
        assert await store.outline(KEY) == ((), ())
        assert await store.messages(KEY, 0) == ()
        assert await store.messages_by_seq(KEY, [1]) == ()
        assert await store.generations(KEY, 9) == ()
        assert await store.forget(KEY) == ForgetResult()
        await store.wait_erased()

    async def test_load_gives_what_was_committed(self, store: Store) -> None:
        """The loaded memory equals the one the commit returned, in every field."""
        thread = MemoryBuilder().chat(9).cover(3).chunk(2).keep_reflection()
        first = await store.commit(
            Memory(key=KEY), replace(MemoryBuilder().chat(9).memory(), turn_at=1.0)
        )
        thread.more = small_things()
        after = await store.commit(first, thread.memory())
        assert await store.load(KEY) == after == thread.memory(after.version, after.row_id)

    async def test_load_is_bounded(self, store: Store) -> None:
        """Only the newest RECENT_MARKS of the covered messages are loaded."""
        thread = MemoryBuilder().chat(RECENT_MARKS + 44)
        first = await store.commit(Memory(key=KEY), thread.memory())
        await store.commit(first, thread.cover(RECENT_MARKS + 40).memory())
        loaded = await store.load(KEY)
        assert [m.seq for m in loaded.recent] == list(range(41, RECENT_MARKS + 41))
        assert (loaded.count, len(loaded.tail)) == (RECENT_MARKS + 44, 4)

    async def test_version_is_the_committed_one_and_grows(self, store: Store) -> None:
        """Each commit's version is greater than the one before, and `version` tells the newest."""
        first = await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
        second = await store.commit(first, replace(first, turns=1))
        assert 0 < first.version < second.version == await store.version(KEY)

    async def test_row_id_names_the_row(self, store: Store) -> None:
        """`row_id` is set by the first commit and kept by the others. A thread made again after it
        was forgotten has another one."""
        assert (await store.load(KEY)).row_id == 0
        first = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        second = await store.commit(first, replace(first, turns=1, row_id=77))
        assert 0 < first.row_id == second.row_id == (await store.load(KEY)).row_id
        await store.forget(KEY)
        assert (await store.load(KEY)).row_id == 0
        anew = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        assert anew.row_id not in (0, first.row_id)

    async def test_thread_and_shared_log_are_rows_of_their_own(self, store: Store) -> None:
        s = await self._shared(store)
        row_ids = {memory.row_id for memory in s.stored.values()}
        assert len(row_ids) == 3
        assert {(await store.load(memory.key)).row_id for memory in s.stored.values()} == row_ids

    # ── commit ──

    @pytest.mark.parametrize("known", [True, False], ids=["older version", "version of nothing"])
    async def test_conflict_writes_nothing(self, store: Store, known: bool) -> None:
        """A commit on another version than the stored one raises Conflict and changes nothing."""
        first = await store.commit(Memory(key=KEY), MemoryBuilder().chat(4).memory())
        await store.commit(first, replace(first, turns=1))
        before = first if known else Memory(key=KEY)
        stood = await read_everything(store, KEY)
        thread = MemoryBuilder().chat(6, "others").chunk(2)
        interrupted = thread.interrupt_reply(item("broken off", "assistant"))
        with pytest.raises(Conflict):
            await store.commit(before, thread.memory(), [interrupted])
        assert await read_everything(store, KEY) == stood

    async def test_one_of_two_simultaneous_commits_wins(self, store: Store) -> None:
        """Exactly one of several commits on one version succeeds; the others conflict."""
        first = await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
        tries = [store.commit(first, replace(first, turns=turns)) for turns in range(1, 9)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        [won] = [r for r in results if isinstance(r, Memory)]
        assert sum(isinstance(r, Conflict) for r in results) == 7
        assert await store.load(KEY) == won

    async def test_threads_commit_side_by_side(self, store: Store) -> None:
        """Commits of different threads that arrive together all succeed. A conflict of one does not
        affect the others."""
        threads = [
            MemoryBuilder(Key("tenant", "r", f"thread {n}")).chat(n % 3 + 1) for n in range(20)
        ]
        stale = replace(threads[7].memory(), version=99)
        tries = [store.commit(Memory(key=t.key), t.memory()) for t in threads]
        *done, conflict = await asyncio.gather(
            *tries, store.commit(stale, stale), return_exceptions=True
        )
        assert isinstance(conflict, Conflict)
        assert [await store.load(t.key) for t in threads] == done
        assert len({m.version for m in done if isinstance(m, Memory)}) == 20

    async def test_superseded_messages_stay_but_are_not_live(self, store: Store) -> None:
        """Messages missing from the new tail are kept as superseded ones, with the parent they had."""
        thread = MemoryBuilder().chat(6)
        first = await store.commit(Memory(key=KEY), thread.memory())
        thread.supersede([5, 6]).chat(2, "instead")
        await store.commit(first, thread.memory())
        assert await store.outline(KEY) == thread.outline()
        assert [m.seq for m in await store.messages(KEY, 0)] == [1, 2, 3, 4, 7, 8]
        assert await store.messages_by_seq(KEY, [5, 6]) == (thread.every[5], thread.every[6])
        assert [parent for _, parent in thread.outline().superseded] == [4, 5]

    async def test_superseding_inside_the_tail_moves_parents(self, store: Store) -> None:
        """The message after a superseded one gets the message before it as its parent."""
        thread = MemoryBuilder().chat(5)
        first = await store.commit(Memory(key=KEY), thread.memory())
        second = await store.commit(first, thread.supersede([3]).memory())
        await store.commit(second, thread.supersede([4]).memory())
        assert await store.outline(KEY) == thread.outline()
        assert {mark.seq: parent for mark, parent in (await store.outline(KEY)).superseded} == {
            3: 2,
            4: 2,
        }

    async def test_revived_messages_are_live_again(self, store: Store) -> None:
        """A superseded branch that appears in the tail again is live, and the branch that replaced
        it is not."""
        thread = MemoryBuilder().chat(4)
        first = await store.commit(Memory(key=KEY), thread.memory())
        second = await store.commit(first, thread.supersede([3, 4]).chat(2, "instead").memory())
        third = await store.commit(second, thread.revive(4).memory())
        assert await store.load(KEY) == third
        assert await store.outline(KEY) == thread.outline()
        assert [mark.seq for mark in (await store.outline(KEY)).live] == [1, 2, 3, 4]

    async def test_swapped_item_is_replaced(self, store: Store) -> None:
        """A message whose item changed is replaced under its seq, and the chains after it
        follow."""
        thread = MemoryBuilder().chat(4)
        first = await store.commit(Memory(key=KEY), thread.memory())
        thread.swap(
            2, item("what the client says it was", "assistant", calls=("a", "b"), answers="c")
        )
        second = await store.commit(first, thread.memory())
        assert await store.load(KEY) == second
        assert await store.messages_by_seq(KEY, [2]) == (thread.every[2],)

    async def test_an_interrupted_reply_is_stored_but_never_live(self, store: Store) -> None:
        """An interrupted reply can be read by seq. The outline lists it as superseded, after the
        live message before it."""
        thread = MemoryBuilder().chat(3)
        interrupted = thread.interrupt_reply(item("I was say", "assistant"))
        thread.chat(1)
        await store.commit(Memory(key=KEY), thread.memory(), [interrupted])
        assert await store.outline(KEY) == thread.outline()
        assert (await store.outline(KEY)).superseded == ((interrupted.mark, 3),)
        assert await store.messages_by_seq(KEY, [interrupted.seq]) == (interrupted,)
        assert interrupted not in await store.messages(KEY, 0)

    async def test_an_interrupted_reply_can_become_live(self, store: Store) -> None:
        """An interrupted reply that the client sends back becomes live like any superseded
        message."""
        thread = MemoryBuilder().chat(3)
        interrupted = thread.interrupt_reply(item("I was say", "assistant"))
        first = await store.commit(Memory(key=KEY), thread.memory(), [interrupted])
        second = await store.commit(first, thread.revive(interrupted.seq).memory())
        assert await store.load(KEY) == second
        assert (await store.outline(KEY)).superseded == ()

    async def test_rolled_back_coverage_uncovers(self, store: Store) -> None:
        """The live messages after a lower coverage are raw again, and those that the fork dropped
        are superseded."""
        thread = MemoryBuilder().chat(10)
        first = await store.commit(Memory(key=KEY), thread.memory())
        second = await store.commit(first, thread.cover(4).cover(4).memory())
        third = await store.commit(
            second, thread.supersede([7, 8, 9, 10]).chat(1, "edited").memory()
        )
        assert third.coverage == 4
        assert await store.load(KEY) == third
        assert [m.seq for m in third.tail] == [5, 6, 11]
        assert await store.outline(KEY) == thread.outline()
        assert await store.generations(KEY, third.log.generation) == thread.generations(
            third.log.generation
        )

    async def test_fork_where_nothing_was_raw(self, store: Store) -> None:
        """Covered messages that a fork takes back are superseded although no tail, old or new, ever
        held them."""
        thread = MemoryBuilder().chat(6)
        first = await store.commit(Memory(key=KEY), thread.memory())
        second = await store.commit(first, thread.cover(3).cover(3).memory())
        third = await store.commit(second, thread.supersede([5, 6]).memory())
        assert (second.tail, [m.seq for m in third.tail]) == ((), [4])
        assert await store.load(KEY) == third
        assert await store.outline(KEY) == thread.outline()

    async def test_coverage_never_passes_a_message_that_is_not_stored(self, store: Store) -> None:
        """A commit that covers new messages in the same step would lose them. It is refused and
        writes nothing."""
        thread = MemoryBuilder().chat(2)
        first = await store.commit(Memory(key=KEY), thread.memory())
        with pytest.raises(StorageError):
            await store.commit(first, thread.chat(2).cover(4).memory())
        assert await store.load(KEY) == first

    async def test_activation_adds_to_the_generation(self, store: Store) -> None:
        """Chunks become log entries in their order. The others stay chunks, and the generation
        stays the same."""
        thread = MemoryBuilder().chat(8).chunk(2).chunk(2).chunk(2)
        first = await store.commit(Memory(key=KEY), thread.memory())
        second = await store.commit(first, thread.activate(1).memory())
        third = await store.commit(second, thread.activate(1).memory())
        assert await store.load(KEY) == third
        assert ([o.id for o in third.log.entries], [o.id for o in third.chunks]) == ([1, 2], [3])
        assert await store.generations(KEY, 1) == ((0, third.log.entries),)

    async def test_older_generations_stay_as_they_were(self, store: Store) -> None:
        """Every older log can be read after reflections and an undo, newest first, with the entries
        that logs have in common."""
        thread = MemoryBuilder().chat(12)
        memory = await store.commit(Memory(key=KEY), thread.memory())
        memory = await store.commit(memory, thread.cover(2).cover(2).keep_reflection().memory())
        memory = await store.commit(memory, thread.swap_reflection().memory())
        memory = await store.commit(memory, thread.cover(3).chunk(1).memory())
        memory = await store.commit(memory, thread.undo_reflection(0).memory())
        memory = await store.commit(memory, thread.cover(6).memory())
        assert await store.load(KEY) == memory
        assert await store.generations(KEY, memory.log.generation) == thread.generations(
            memory.log.generation
        )
        assert [n for n, _ in await store.generations(KEY, 1)] == [0]
        older = await store.generations(KEY, 99)
        assert await store.generation_summaries(KEY, 99) == tuple(map(summarize_generation, older))
        for before, limit in itertools.product((0, 1, 99), (0, 1, 2)):
            page = tuple(generation for generation in older if generation.number < before)[:limit]
            assert await store.generations(KEY, before, limit) == page

    async def test_each_generation_says_why_it_began(self, store: Store) -> None:
        """The current one with the memory, all by number. The first one says nothing. What a person
        changed in an entry comes back with it."""
        thread = MemoryBuilder().chat(6)
        memory = await store.commit(Memory(key=KEY), thread.memory())
        memory = await store.commit(memory, thread.cover(2).cover(2).memory())
        assert memory.log.began is None
        for number in (1, 2):
            edited = edits.edit_entry(memory, memory.log.entries[0].id, f"* {number}", 1, 7.5)
            assert edited is not None
            memory = await store.commit(memory, edited)
            assert await store.load(KEY) == memory
        assert memory.log.began == ("edit", 7.5)
        assert await store.beginnings(KEY) == {1: ("edit", 7.5), 2: ("edit", 7.5)}

    async def test_erased_notes_keep_their_place(self, store: Store) -> None:
        """Older generations read with the blank entries, from the commit on that withdraws one of
        them. Nothing is erased or committed if something has changed since."""
        thread = MemoryBuilder().chat(6)
        memory = await store.commit(Memory(key=KEY), thread.memory())
        first = await store.commit(memory, thread.cover(2).cover(2).memory())
        gone = edits.withdraw_entry(first, first.log.entries[0].id, 7.5, forget=True)
        assert gone is not None
        blanks = (withdrawal.blank(first.log.entries[0]),)
        for change, version in (
            (Change(memory, replace(gone, version=memory.version)), first.version),
            (Change(first, gone), memory.version),
        ):
            with pytest.raises(Conflict):
                await store.commit_erasing(change, [NoteErasure(KEY, version, blanks)])
            assert await store.load(KEY) == first
        erasure = NoteErasure(KEY, first.version, blanks)
        memory, erased = await store.commit_erasing(Change(first, gone), [erasure])
        assert erased[:5] == ForgetResult(observations=1)[:5]
        assert (await store.generations(KEY, 1))[0].entries == (*blanks, first.log.entries[1])
        assert await store.load(KEY) == memory
        assert await store.version(KEY) == memory.version > first.version

    async def test_erasing_shared_notes_clears_what_others_were_told(self, store: Store) -> None:
        s = await self._shared(store)
        told = replace(s.stored["B"], other_threads_text="A said: canary")
        before, _ = await store.commit_shared(Change(s.stored["B"], told), None)
        shared_log = await store.load(resource_key(KEY))
        erasure = NoteErasure(shared_log.key, shared_log.version, ())
        await store.commit_erasing(Change(shared_log, shared_log), [erasure])
        after = await store.load(before.key)
        assert (after.other_threads_text, after.version > before.version) == ("", True)

    async def test_a_turn_does_not_tell_what_was_erased_meanwhile(self, store: Store) -> None:
        """It conflicts with the forgetting of a note in another thread's own log, which takes what
        the shared log had of it along."""
        s = await self._shared(store)
        shared_log = await store.load(resource_key(KEY))
        key = KEY._replace(thread="C")
        own = await store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
        erasure = NoteErasure(shared_log.key, shared_log.version, ())
        await store.commit_erasing(Change(own, replace(own, turns=3)), [erasure])
        assert await store.version(shared_log.key) > shared_log.version
        told = replace(s.stored["B"], other_threads_text="A said: canary")
        change = Change(s.stored["B"], told)
        with pytest.raises(Conflict):
            await store.commit_shared(change, Change(shared_log, shared_log))
        assert (await store.load(s.stored["B"].key)).other_threads_text == ""

    async def test_versions_come_from_one_counter(self, store: Store) -> None:
        """Of two commits the later one has the larger version, also of another thread."""
        first = await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
        other = await store.commit(
            Memory(key=OTHER_TENANT_KEY), MemoryBuilder(OTHER_TENANT_KEY).chat(1).memory()
        )
        again = await store.commit(first, replace(first, turns=3))
        assert first.version < other.version < again.version

    async def test_dropped_chunks_are_deleted(self, store: Store) -> None:
        """Chunks in neither the new chunks nor the new log are gone."""
        thread = MemoryBuilder().chat(6).chunk(2).chunk(2)
        first = await store.commit(Memory(key=KEY), thread.memory())
        second = await store.commit(first, thread.drop_chunks(1).memory())
        assert await store.load(KEY) == second
        assert len(second.chunks) == 1

    async def test_edited_chunk_is_replaced(self, store: Store) -> None:
        """A chunk with another text under its id reads with that text."""
        thread = MemoryBuilder().chat(4).chunk(2)
        first = await store.commit(Memory(key=KEY), thread.memory())
        edited = replace(
            first, chunks=(replace(first.chunks[0], text="edited", task=None, tokens=1),)
        )
        assert await store.commit(first, edited) == await store.load(KEY)
        assert (await store.load(KEY)).chunks[0].text == "edited"

    async def test_shortened_log_of_one_generation(self, store: Store) -> None:
        """A log that lost or exchanged entries without a new generation reads as it is now."""
        thread = MemoryBuilder().chat(9)
        first = await store.commit(Memory(key=KEY), thread.memory())
        second = await store.commit(first, thread.cover(2).cover(2).cover(2).memory())
        third = await store.commit(second, replace_log(second, entries=second.log.entries[1:]))
        assert (await store.load(KEY)).log.entries == third.log.entries == second.log.entries[1:]

    async def test_pending_reflection_comes_and_goes(self, store: Store) -> None:
        """A pending reflection is stored, replaced and cleared by commits."""
        thread = MemoryBuilder().chat(4)
        memory = await store.commit(Memory(key=KEY), thread.memory())
        memory = await store.commit(memory, thread.cover(2).keep_reflection().memory())
        assert (await store.load(KEY)).log.reflection == thread.reflection is not None
        made = replace(thread.reflection, text="another")
        memory = await store.commit(memory, replace_log(memory, reflection=made))
        assert (await store.load(KEY)).log.reflection == made
        await store.commit(memory, replace_log(memory, reflection=None))
        assert (await store.load(KEY)).log.reflection is None

    @pytest.mark.parametrize("raw", ODD.values(), ids=ODD.keys())
    async def test_odd_bytes_survive(self, store: Store, raw: bytes) -> None:
        """A message's JSON comes back byte for byte, whatever it holds, but for half characters."""
        thread = MemoryBuilder().say(replace(item("x"), raw=raw))
        await store.commit(Memory(key=KEY), thread.memory())
        whole = raw.replace(b"\\ud800", b"\\ufffd")
        assert [m.item.raw for m in await store.messages(KEY, 0)] == [whole]

    async def test_look_ups_stay_with_their_message(self, store: Store) -> None:
        """Whatever bytes a server has sent in them; they come and go as the rest of the message
        does."""
        odd = [raw for raw in ODD.values() if b"\\ud800" not in raw]
        thread = MemoryBuilder().say(*(item(f"{place}") for place, _ in enumerate(odd)))
        for message, raw in zip(list(thread.every.values()), odd, strict=True):
            one = Round(raw, (raw, raw))
            thread.every[message.seq] = replace(message, look_ups=LookedUp((one,), one, 9))
        stored = await store.commit(Memory(key=KEY), thread.memory())
        kept = [message.look_ups for message in thread.tail]
        assert [m.look_ups for m in await store.messages(KEY, 0)] == kept
        first = replace(thread.tail[0], look_ups=None)
        without = await store.commit(stored, replace(stored, tail=(first, *stored.tail[1:])))
        assert (await store.refresh(stored)).tail == without.tail
        assert [m.look_ups for m in (await store.load(KEY)).tail] == [None, *kept[1:]]

    async def test_no_field_of_a_message_is_left_out(self, store: Store) -> None:
        """Each has another value than its default: a line that is forgotten where a row is written
        or read is noticed. It holds for the whole row, and for its parts that change alone."""
        thread = full_thread()
        broken = thread.interrupt_reply(full_item("broken"))
        plain = Message(0, Item(b"", "", b""), b"", 0, 0.0)
        for one, other in ((thread.tail[0], plain), (thread.tail[0].item, plain.item)):
            names = one.__struct_fields__
            assert [name for name in names if getattr(one, name) == getattr(other, name)] == []
        stored = await store.commit(Memory(key=KEY), thread.memory(), [broken])
        for api in ("messages", "chat", "responses"):
            first = thread.tail[0]
            thread.every[1] = replace(first, item=replace(first.item, api=api))
            held, stored = (
                stored,
                await store.commit(stored, replace(stored, tail=tuple(thread.tail))),
            )
            assert await store.refresh(held) == await store.load(KEY) == stored
            messages = await store.stored_messages(KEY, 0, limit=9)
            assert [message.message for message in messages] == list(thread.every.values())
            assert await store.messages_by_seq(KEY, (1, 2)) == tuple(thread.tail)
        await store.move_tenant(KEY.tenant, OTHER_TENANT_KEY.tenant, lambda *_: None)
        thread.drop_look_ups()  # they name threads by labels of the old tenant
        assert await store.messages(OTHER_TENANT_KEY, 0) == tuple(thread.tail)

    async def test_a_message_of_another_api_keeps_its_name_without_look_ups(
        self, store: Store
    ) -> None:
        """Its look-ups quote a thread that is forgotten."""
        gone = KEY._replace(thread="gone")
        thread = full_thread()
        label = label_thread(await store.secret(), gone)[:8].encode()
        quote = LookedUp((Round(b"call", (b"[" + label + b".m1] word",)),), None, 9)
        thread.every = {seq: replace(m, look_ups=quote) for seq, m in thread.every.items()}
        await store.commit(Memory(key=gone), MemoryBuilder(gone).chat(2).memory())
        await store.commit(Memory(key=KEY), thread.memory())
        await store.forget(gone)
        thread.drop_look_ups()
        assert await store.messages(KEY, 0) == tuple(thread.tail)

    @pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
    async def test_odd_text_survives(self, store: Store, text: str) -> None:
        """Every text from outside comes back, but for half characters: roles, call ids,
        observations, hints, titles, model names."""
        thread = (
            MemoryBuilder()
            .say(replace(item("x"), role=text, calls=(text, "b"), answers=text))
            .chat(3)
        )
        first = await store.commit(Memory(key=KEY), thread.memory())
        thread.cover(1).chunk(1).keep_reflection()
        odd = {"text": text, "task": text, "suggestion": text, "model": text}
        after = replace(
            replace_log(
                thread.memory(),
                entries=(replace(thread.log[0], title=text, **odd),),
                reflection=replace(thread.reflection, **odd),
            ),
            chunks=(replace(thread.chunks[0], title=text, **odd),),
            title=text,
            model=text,
        )
        stored = await store.commit(first, after)
        loaded = await store.load(KEY)
        whole = replace_halves(text)
        if text == whole:
            assert stored == loaded
            assert (await store.outline(KEY)).live == first.marks
        mark = loaded.marks[0]
        assert (mark.role, mark.calls, mark.answers) == (whole, (whole, "b"), whole)
        for notes in (loaded.log.entries[0], loaded.chunks[0], loaded.log.reflection):
            assert notes
            assert {notes.text, notes.task, notes.suggestion, notes.model} == {whole}
        assert (loaded.title, loaded.model, loaded.log.entries[0].title) == (whole,) * 3
        [info] = await store.threads(None)
        assert (info.title, info.model) == (whole, whole)

    async def test_cancelled_caller_leaves_the_store_whole(self, store: Store) -> None:
        """A commit cancelled at any of its awaits is written as a whole or not at all, and the
        store still works."""
        thread = MemoryBuilder().chat(1)
        memory = await store.commit(Memory(key=KEY), thread.memory())
        for steps in range(25):
            task = asyncio.ensure_future(
                store.commit(memory, thread.chat(2).memory(memory.version, memory.row_id))
            )
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            while True:
                loaded = await store.load(KEY)
                assert replace(loaded, version=0, row_id=0) in (
                    replace(memory, version=0, row_id=0),
                    thread.memory(),
                )
                after = thread.memory(loaded.version, loaded.row_id)
                try:
                    memory = await store.commit(loaded, after)
                    break
                except Conflict:
                    continue  # the cancelled one was still under way
            assert await store.load(KEY) == memory

    # ── reading messages ──

    @pytest.mark.parametrize(
        ("after", "through", "limit", "seqs"),
        [
            (0, None, None, [1, 2, 4, 5]),
            (1, None, None, [2, 4, 5]),
            (1, 4, None, [2, 4]),
            (0, 3, None, [1, 2]),
            (0, None, 3, [1, 2, 4]),
            (2, 5, 1, [4]),
            (5, None, None, []),
            (0, None, 0, []),
        ],
    )
    async def test_messages_of_a_range(
        self, store: Store, after: int, through: int | None, limit: int | None, seqs: list[int]
    ) -> None:
        """A range returns live messages with `after < seq <= through`, by seq, at most `limit`,
        covered ones too."""
        thread = MemoryBuilder().chat(5)
        first = await store.commit(Memory(key=KEY), thread.memory())
        await store.commit(first, thread.supersede([3]).cover(2).memory())
        found = await store.messages(KEY, after, through, limit)
        assert found == tuple(thread.every[seq] for seq in seqs)

    @pytest.mark.parametrize(
        ("after", "through", "limit", "seqs"),
        [
            (0, None, 9, [1, 2, 3, 4, 5, 6, 7]),
            (2, None, 3, [3, 4, 5]),
            (2, 4, 9, [3, 4]),
            (3, 2, 9, []),
            (7, None, 9, []),
            (0, None, 0, []),
        ],
    )
    async def test_page_of_all_messages(
        self, store: Store, after: int, through: int | None, limit: int, seqs: list[int]
    ) -> None:
        """A page holds live, superseded and interrupted messages, by seq, each with its state and
        the live message before it."""
        thread = MemoryBuilder().chat(5)
        interrupted = thread.interrupt_reply(item("I was say", "assistant"))
        first = await store.commit(Memory(key=KEY), thread.memory(), [interrupted])
        await store.commit(first, thread.supersede([3]).cover(2).chat(1).memory())
        found = await store.stored_messages(KEY, after, through, limit=limit)
        assert found == tuple(stored for stored in thread.stored() if stored.message.seq in seqs)
        assert [stored.message.seq for stored in found] == seqs
        states = {stored.message.seq: stored.state for stored in thread.stored()}
        assert (states[2], states[3], states[6]) == ("live", "superseded", "interrupted")

    async def test_an_interrupted_reply_that_was_live_is_superseded(self, store: Store) -> None:
        thread = MemoryBuilder().chat(3)
        interrupted = thread.interrupt_reply(item("I was say", "assistant"))
        first = await store.commit(Memory(key=KEY), thread.memory(), [interrupted])
        second = await store.commit(first, thread.revive(interrupted.seq).memory())
        [found] = await store.stored_messages(KEY, 3, limit=9)
        assert found.state == "live"
        await store.commit(second, thread.supersede([interrupted.seq]).memory())
        [found] = await store.stored_messages(KEY, 3, limit=9)
        assert found.state == "superseded"

    async def test_by_seq_takes_live_and_dead_and_leaves_out_unknown(self, store: Store) -> None:
        """The requested messages are returned once each, in order, live or not."""
        thread = MemoryBuilder().chat(5)
        first = await store.commit(Memory(key=KEY), thread.memory())
        await store.commit(first, thread.supersede([4, 5]).memory())
        found = await store.messages_by_seq(KEY, [5, 99, 2, 5, -1])
        assert found == (thread.every[2], thread.every[5])
        assert await store.messages_by_seq(KEY, []) == ()

    # ── due, leases ──

    async def _due_at(self, store: Store, key: Key, due: float | None) -> None:
        await store.commit(
            Memory(key=key), replace(MemoryBuilder(key).chat(1).memory(), due_at=due)
        )

    async def test_due_threads_longest_first(self, store: Store) -> None:
        """Only threads with `due <= now` are returned, the longest due first, at most `limit`."""
        for name, due in {
            "late": 30.0,
            "now": 20.0,
            "early": 10.0,
            "later": 40.5,
            "never": None,
        }.items():
            await self._due_at(store, Key("t", "r", name), due)
        assert [key.thread for key in await store.due_threads(30.0, 9)] == ["early", "now", "late"]
        assert [key.thread for key in await store.due_threads(30.0, 2)] == ["early", "now"]
        assert await store.due_threads(9.9, 9) == ()

    async def test_tenants_take_turns(self, store: Store) -> None:
        """A tenant with many due threads does not keep another's waiting."""
        for n in range(4):
            await self._due_at(store, Key("busy", "r", f"b{n}"), float(n))
        for n in range(2):
            await self._due_at(store, Key("quiet", "r", f"q{n}"), 10.0 + n)
        assert [key.thread for key in await store.due_threads(99.0, 4)] == ["b0", "q0", "b1", "q1"]
        assert [key.thread for key in await store.due_threads(99.0, 9)] == [
            "b0",
            "q0",
            "b1",
            "q1",
            "b2",
            "b3",
        ]

    async def test_leased_threads_are_not_due(self, store: Store) -> None:
        """A lease hides a thread from `due` until it is released or expires."""
        await self._due_at(store, KEY, 1.0)
        await store.lease(KEY, "me", 60)
        assert await store.due_threads(9.0, 9) == ()
        await store.release(KEY, "me")
        assert await store.due_threads(9.0, 9) == (KEY,)
        await store.lease(KEY, "me", 0)
        assert await store.due_threads(9.0, 9) == (KEY,)

    async def test_claim_leases_what_is_due(self, store: Store) -> None:
        """A claim leases the due threads in one step, in the order of `due`. Its holder may prolong
        the lease and give it back."""
        for name, due in {"late": 30.0, "early": 10.0, "later": 40.5, "never": None}.items():
            await self._due_at(store, Key("t", "r", name), due)
        claimed = await store.claim(30.0, 9, "me", 60)
        assert [key.thread for key in claimed] == ["early", "late"]
        assert await store.claim(30.0, 9, "you", 60) == ()
        assert await store.claim(30.0, 9, "me", 60) == (), "nor twice to the same holder"
        assert not await store.lease(claimed[0], "you", 60)
        assert await store.lease(claimed[0], "me", 60)
        await store.release(claimed[1], "me")
        assert await store.claim(30.0, 9, "you", 60) == claimed[1:]

    async def test_claim_of_what_somebody_works_on(self, store: Store) -> None:
        """A claim gets no thread that was leased by hand or by another claim, until the lease
        expires."""
        await self._due_at(store, KEY, 1.0)
        await self._due_at(store, OTHER_TENANT_KEY, 2.0)
        await store.lease(KEY, "me", 60)
        assert await store.claim(9.0, 9, "you", 0) == (OTHER_TENANT_KEY,)
        assert await store.claim(9.0, 9, "they", 60) == (OTHER_TENANT_KEY,), "its lease has run out"
        await store.lease(KEY, "me", 0)
        assert await store.claim(9.0, 9, "they", 60) == (KEY,)

    async def test_claim_takes_turns_between_tenants(self, store: Store) -> None:
        """A tenant with many due threads does not keep another's waiting, however few are
        claimed."""
        for n in range(4):
            await self._due_at(store, Key("busy", "r", f"b{n}"), float(n))
        for n in range(2):
            await self._due_at(store, Key("quiet", "r", f"q{n}"), 10.0 + n)
        assert [key.thread for key in await store.claim(99.0, 3, "me", 60)] == ["b0", "q0", "b1"]
        assert [key.thread for key in await store.claim(99.0, 9, "you", 60)] == ["b2", "q1", "b3"]

    async def test_claim_without_callers(self, store: Store) -> None:
        """Work that needs a caller's credential is left to the process that holds it: it neither
        fills the limit nor is leased. Each commit says anew whether its work does."""
        keys = [Key(f"t{n % 2}", "r", f"x{n}") for n in range(4)]
        for n, key in enumerate(keys):
            memory = replace(MemoryBuilder(key).chat(1).memory(), due_at=float(n))
            await store.commit(Memory(key=key), replace(memory, needs_caller=n < 2))
        assert await store.claim(9.0, 2, "me", 60, callers=False) == (keys[2], keys[3])
        assert await store.claim(9.0, 9, "you", 60, callers=False) == ()
        assert await store.due_threads(9.0, 9) == (keys[0], keys[1])
        before = await store.load(keys[0])
        assert before.needs_caller
        await store.commit(before, replace(before, needs_caller=False))
        assert await store.claim(9.0, 9, "you", 60, callers=False, skip={keys[3]}) == (keys[0],)
        assert await store.claim(9.0, 9, "you", 60, callers=True) == (keys[1],)

    async def test_claim_skips(self, store: Store) -> None:
        """Threads that a holder cannot work on do not fill the limit, and stay free for others."""
        keys = [Key(f"t{n}", 'r "quoted"', "x") for n in range(4)]
        for n, key in enumerate(keys):
            await self._due_at(store, key, float(n))
        skip = {keys[0], keys[2], Key("t1", "another", "x")}
        assert await store.claim(99.0, 2, "me", 60, skip=skip) == (keys[1], keys[3])
        assert await store.claim(99.0, 9, "you", 60) == (keys[0], keys[2])
        assert await store.claim(99.0, 0, "me", 60) == ()

    async def test_parked_thread_is_not_due_until_revived(self, store: Store) -> None:
        """A commit takes a thread out of the due ones, and another one brings it back."""
        thread = MemoryBuilder().chat(2)
        thread.more = {**small_things(), "due_at": 5.0}
        memory = await store.commit(Memory(key=KEY), thread.memory())
        parked = await store.commit(memory, replace(memory, due_at=None))
        assert await store.due_threads(1e11, 9) == ()
        await store.commit(parked, replace(parked, failures=Failures(), due_at=5.0))
        assert await store.due_threads(1e11, 9) == (KEY,)

    async def test_claims_at_once_share_what_is_due(self, store: Store) -> None:
        """Each due thread goes to one of the holders, and none is left."""
        keys = {Key(f"t{n % 3}", "r", f"x{n}") for n in range(20)}
        for key in keys:
            await self._due_at(store, key, 1.0)
        claims = await asyncio.gather(*(store.claim(9.0, 4, f"holder {n}", 60) for n in range(9)))
        found = [key for claimed in claims for key in claimed]
        assert (len(found), set(found)) == (20, keys)

    async def test_lease_is_one_holders(self, store: Store) -> None:
        """Only its holder may prolong a lease or give it back. Others wait until it is released or
        expires."""
        assert await store.lease(KEY, "me", 60)
        assert not await store.lease(KEY, "you", 60)
        assert await store.lease(KEY, "me", 60)
        await store.release(KEY, "you")
        assert not await store.lease(KEY, "you", 60)
        await store.release(KEY, "me")
        assert await store.lease(KEY, "you", 60)
        assert await store.lease(KEY, "you", 0)  # cut short: over at once
        assert await store.lease(KEY, "me", 60)

    async def test_one_of_many_gets_the_lease(self, store: Store) -> None:
        """Exactly one of several holders that ask at the same moment succeeds."""
        assert (
            sum(await asyncio.gather(*(store.lease(KEY, f"holder {n}", 60) for n in range(9)))) == 1
        )

    async def test_commit_needs_no_lease(self, store: Store) -> None:
        """A lease only saves money: others can commit, and the lease outlives the commit."""
        await store.lease(KEY, "me", 60)
        await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
        assert not await store.lease(KEY, "you", 60)

    # ── threads that share a log ──

    async def _shared(
        self, store: Store, names: str = "AB", reflected: bool = False
    ) -> SharedStore:
        return await share_log(store, names, reflected=reflected)

    async def test_a_thread_and_its_shared_log_are_written_together(self, store: Store) -> None:
        """Thread and shared log read as they were committed, and the list of threads leaves the
        shared log out."""
        s = await self._shared(store)
        await s.compare()
        assert [o.parts[0].label for o in (await store.load(resource_key(KEY))).log.entries] == [
            s.led.voices[name].label for name in "ABBA"
        ]
        assert (await store.load(s.stored["A"].key)).log.entries == ()

    @pytest.mark.parametrize("moved", ["A", RESOURCE_THREAD], ids=["thread", "shared-log"])
    async def test_a_conflict_of_either_writes_neither(self, store: Store, moved: str) -> None:
        s = await self._shared(store)
        thread, shared_log = s.stored["A"], s.stored[RESOURCE_THREAD]
        where = s.stored[moved]
        await store.commit(where, replace(where, turns=9))
        stood = (
            await read_everything(store, thread.key),
            await read_everything(store, shared_log.key),
        )
        for after in (replace_log(shared_log, entries=shared_log.log.entries[:1]), shared_log):
            with pytest.raises(Conflict):
                await store.commit_shared(
                    Change(thread, replace(thread, turns=3)),
                    Change(shared_log, after),
                    ResourceWakeup(1.0, 0),
                )
        assert (
            await read_everything(store, thread.key),
            await read_everything(store, shared_log.key),
        ) == stood

    async def test_of_two_threads_that_change_the_log_at_once_one_conflicts(
        self, store: Store
    ) -> None:
        s = await self._shared(store)
        shared_log = s.stored[RESOURCE_THREAD]
        tries = [
            store.commit_shared(
                Change(s.stored[name], replace(s.stored[name], turns=7)),
                Change(shared_log, replace_log(shared_log, unproductive_tokens=n)),
            )
            for n, name in enumerate("AB", 1)
        ]
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(r, Conflict) for r in results) == 1
        turns = [(await store.load(s.stored[name].key)).turns for name in "AB"]
        assert sorted(turns) == [0, 7]
        assert (await store.load(shared_log.key)).log.unproductive_tokens == turns.index(7) + 1

    async def test_a_shared_log_that_does_not_differ_is_not_written(self, store: Store) -> None:
        """An unchanged shared log must have the expected version, and keeps it, so that no cache
        reads it again."""
        s = await self._shared(store)
        thread, log = await store.commit_shared(
            Change(s.stored["A"], replace(s.stored["A"], turns=5)),
            Change(s.stored[RESOURCE_THREAD], s.stored[RESOURCE_THREAD]),
        )
        assert log == s.stored[RESOURCE_THREAD] == await store.load(resource_key(KEY))
        assert await store.load(thread.key) == thread

    async def test_a_thread_alone_may_be_written(self, store: Store) -> None:
        """The version of the shared log is not checked if the commit does not name it."""
        s = await self._shared(store)
        await store.commit(
            s.stored[RESOURCE_THREAD], replace_log(s.stored[RESOURCE_THREAD], unproductive_tokens=1)
        )
        thread, log = await store.commit_shared(
            Change(s.stored["A"], replace(s.stored["A"], turns=5)), None
        )
        assert log is None
        assert await store.load(thread.key) == thread

    @pytest.mark.parametrize(("tokens", "due"), [(40, True), (41, False)])
    async def test_what_nobody_has_observed_makes_the_shared_log_due(
        self, store: Store, tokens: int, due: bool
    ) -> None:
        """The sum over the threads makes the shared log due, in the transaction of the turn. Two
        threads hold 20 tokens each."""
        s = await self._shared(store)
        assert [w.unobserved_tokens for w in await store.resource_backlog(resource_key(KEY))] == [
            20,
            20,
        ]
        await store.commit_shared(
            Change(s.stored["A"], replace(s.stored["A"], turns=5)),
            None,
            ResourceWakeup(50.0, tokens),
        )
        assert await store.due_threads(50.0, 9) == ((resource_key(KEY),) if due else ())
        assert await store.due_threads(49.0, 9) == ()

    async def test_a_wakeup_comes_sooner_than_the_time_set_before(self, store: Store) -> None:
        """Work that waits until one thread may be tried again is due at once if the other threads
        have enough tokens."""
        s = await self._shared(store)
        await store.set_due(resource_key(KEY), 900.0)
        troubled = replace(s.stored["B"], failures=Failures(2, 900.0))
        s.stored["B"], _ = await store.commit_shared(
            Change(s.stored["B"], troubled), None, ResourceWakeup(50.0, 40)
        )
        assert await store.due_threads(899.0, 9) == ()
        s.stored["A"], _ = await store.commit_shared(
            Change(s.stored["A"], replace(s.stored["A"], turns=5)), None, ResourceWakeup(50.0, 20)
        )
        assert await store.due_threads(50.0, 9) == (resource_key(KEY),)

    async def test_set_due(self, store: Store) -> None:
        """`set_due` sets when a thread is due and changes no version."""
        s = await self._shared(store)
        for at in (5.0, 7.0, None):
            await store.set_due(resource_key(KEY), at)
            loaded = await store.load(resource_key(KEY))
            assert loaded == replace(s.stored[RESOURCE_THREAD], due_at=at)
        await store.set_due(OTHER_TENANT_KEY, 5.0)
        assert await store.load(OTHER_TENANT_KEY) == Memory(key=OTHER_TENANT_KEY)

    async def test_set_due_of_a_backlog(self, store: Store) -> None:
        """A look sets when a shared log is due only while the backlog is as it was read. A turn
        since may have made it due at once."""
        s = await self._shared(store)
        log_key = resource_key(KEY)
        backlog = await store.resource_backlog(log_key)
        assert await store.set_due(log_key, 7.0, backlog)
        assert (await store.load(log_key)).due_at == 7.0
        thread = s.stored["A"]
        await store.commit(thread, replace(thread, turn_at=(thread.turn_at or 0.0) + 1))
        for read in (backlog, ()):
            assert not await store.set_due(log_key, None, read)
        assert (await store.load(log_key)).due_at == 7.0
        assert await store.set_due(log_key, None, await store.resource_backlog(log_key))
        assert (await store.load(log_key)).due_at is None

    async def test_backlog(self, store: Store) -> None:
        """The backlog lists the threads that share the log and have a tail, the longest idle first,
        with the tokens of each."""
        s = await self._shared(store, "ABC")
        s.led.observe("C", 1)
        await s.commit("C")
        s.led.leave("A")
        await s.commit("A")
        waiting = await store.resource_backlog(resource_key(KEY))
        assert [
            (w.key.thread, w.pending_tokens, w.unobserved_tokens, w.chunked_tokens) for w in waiting
        ] == [
            ("C", 20, 10, 10),
            ("B", 20, 20, 0),
        ]
        troubled = replace(s.stored["B"], failures=Failures(8, 77.0, True))
        await store.commit_shared(Change(s.stored["B"], troubled), None)
        assert [w.failures for w in await store.resource_backlog(resource_key(KEY))] == [
            Failures(),
            Failures(8, 77.0, True),
        ]
        assert await store.resource_backlog(resource_key(OTHER_TENANT_KEY)) == ()

    async def test_tails_of_other_threads(self, store: Store) -> None:
        """The newest messages of the other threads' tails are returned, the latest thread first.
        The thread's own and other resources' are left out."""
        s = await self._shared(store, "ABC")
        s.led.say("B", 3)
        await s.commit("B")
        found = await store.other_thread_tails(s.stored["A"].key, 9, 2)
        assert [(key.thread, messages) for key, messages in found] == [
            ("B", s.stored["B"].tail[-2:]),
            ("C", s.stored["C"].tail),
        ]
        assert [
            key.thread for key, _ in await store.other_thread_tails(s.stored["A"].key, 1, 2)
        ] == ["B"]
        assert await store.other_thread_tails(OTHER_TENANT_KEY, 9, 9) == ()

    async def test_a_shared_log_is_no_thread_of_a_list(self, store: Store) -> None:
        await self._shared(store)
        assert [info.key.thread for info in await store.threads(None)] == ["A", "B"]
        assert [
            info.key.thread
            for info in await store.threads(KEY.tenant, KEY.resource, resource_key(KEY))
        ] == ["A", "B"]

    # ── forgetting one of them ──

    @pytest.mark.parametrize(
        "reflected", [False, True], ids=["its own entries", "a reflection over both"]
    )
    async def test_forgetting_takes_it_out_of_the_log(self, store: Store, reflected: bool) -> None:
        """The thread's entries leave the log and its older generations. A reflection over several
        threads is replaced by the entries about the others."""
        s = await self._shared(store, reflected=reflected)
        gone, before = s.led.voices["A"].label, s.stored["B"].coverage
        await s.forget("A")
        shared_log = await store.load(resource_key(KEY))
        logs = [
            shared_log.log.entries,
            *(log for _, log in await store.generations(shared_log.key, shared_log.log.generation)),
        ]
        assert {p.label for log in logs for o in log for p in o.parts} == {s.led.voices["B"].label}
        assert gone not in str(logs)
        assert "A1" not in str(logs)
        assert (await store.load(s.stored["B"].key)).coverage == before
        await s.compare()

    async def test_what_went_out_of_the_shared_log_is_counted(self, store: Store) -> None:
        """The removed entries and the generations that held them are counted. With the last thread,
        all of the shared log's are."""
        s = await self._shared(store, reflected=True)
        shared_log = s.stored[RESOURCE_THREAD]
        logs = [
            shared_log.log.entries,
            *(log for _, log in await store.generations(shared_log.key, shared_log.log.generation)),
        ]
        label = s.led.voices["A"].label
        held = [{o.id for o in log if label in {p.label for p in o.parts}} for log in logs]
        first = await store.forget(s.stored["A"].key)
        own = len(s.stored["A"].chunks)
        assert first[:4] == (
            1,
            len(s.led.voices["A"].rows),
            own + len(set().union(*held)),
            sum(map(bool, held)),
        )
        left = await store.load(shared_log.key)
        last = await store.forget(s.stored["B"].key)
        assert last.threads == 1
        assert last.observations >= len(left.log.entries)
        assert await store.forget(s.stored["B"].key) == ForgetResult()

    async def test_forgetting_uncovers_what_cannot_be_told_apart(self, store: Store) -> None:
        """A reflection whose sources are not kept is removed. The other thread's messages are raw
        again and due to be observed."""
        s = await self._shared(store, reflected=True)
        shared_log = replace_log(
            s.stored[RESOURCE_THREAD],
            entries=(replace(s.stored[RESOURCE_THREAD].log.entries[0], sources=(77, 78)),),
        )
        s.stored[RESOURCE_THREAD] = await store.commit(s.stored[RESOURCE_THREAD], shared_log)
        s.led.shared_log, s.led.past = replace(shared_log, version=0), []
        await store.forget(s.stored["A"].key)
        other = await store.load(s.stored["B"].key)
        assert (other.coverage, other.covered_count, other.covered_tokens, other.recent) == (
            0,
            0,
            0,
            (),
        )
        assert other.tail == await store.messages(other.key, 0)
        assert len(other.tail) == 6
        assert (await store.load(resource_key(KEY))).log.entries == ()
        assert await store.due_threads(1e11, 9) == (resource_key(KEY),)

    async def test_forgetting_clears_what_others_were_told(self, store: Store) -> None:
        """The texts about other threads are emptied under a new version, so that a turn in flight
        cannot bring them back."""
        s = await self._shared(store)
        told = replace(
            s.stored["B"],
            other_threads_text="A said: canary",
            shown_log_state=s.stored[RESOURCE_THREAD].log.state,
        )
        before, _ = await store.commit_shared(Change(s.stored["B"], told), None)
        state = s.stored[RESOURCE_THREAD].log.state
        await store.forget(s.stored["A"].key)
        after = await store.load(before.key)
        assert (after.other_threads_text, after.version > before.version) == ("", True)
        assert (await store.load(resource_key(KEY))).log.state != state
        for stale in (
            Change(before, replace(before, turns=9)),
            Change(s.stored["A"], replace(s.stored["A"], turns=9)),
        ):
            with pytest.raises(Conflict):
                await store.commit_shared(stale, None)

    @pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "sharing a log"])
    async def test_forgetting_takes_what_its_tenant_looked_up_in_the_thread(
        self, store: Store, is_shared: bool
    ) -> None:
        """A thread that keeps none of it keeps its version, and what was looked up elsewhere
        stays. So does what another tenant or resource has, whatever it shows."""
        secret = await store.secret()
        if is_shared:
            s = await self._shared(store)
            gone, other = s.stored["A"].key, s.stored["B"]
        else:
            gone = KEY._replace(thread="gone")
            other = await store.commit(Memory(key=KEY), MemoryBuilder().chat(6).memory())
            await store.commit(Memory(key=gone), MemoryBuilder(gone).chat(2).memory())
        shown = label_thread(secret, gone)[:8].encode()
        quote = LookedUp((Round(b"call", (b"[" + shown + b".m1] canary",)),), None, 9)
        beside = LookedUp((), Round(b"call", (b"- [" + shown + b"], canary",)), 9)
        elsewhere = LookedUp((Round(b"call", (b"[0123abcd.m1] kept",)),), None, 9)
        told = (quote, elsewhere, beside)
        tail = (*map(lambda m, up: replace(m, look_ups=up), other.tail, told), *other.tail[3:])
        before = await store.commit(other, replace(other, tail=tail))
        bystanders = []
        for key in (
            KEY._replace(thread="bystander"),
            KEY._replace(tenant="stranger"),
            KEY._replace(resource="stranger"),
        ):
            one = MemoryBuilder(key).chat(2)
            kept = elsewhere if key.thread == "bystander" else quote
            one.every[1] = replace(one.every[1], look_ups=kept)
            bystanders.append(await store.commit(Memory(key=key), one.memory()))
        await store.forget(gone)
        after = await store.refresh(before)
        assert after == await store.load(before.key)
        assert after.version > before.version
        look_ups = {m.seq: m.look_ups for m in await store.messages(before.key, 0)}
        assert [look_ups[m.seq] for m in before.tail[:3]] == [None, elsewhere, None][
            : len(before.tail)
        ]
        assert [look_ups[m.seq] for m in before.tail[3:]] == [m.look_ups for m in before.tail[3:]]
        assert {m.seq: m.look_ups for m in after.tail}.items() <= look_ups.items()
        with pytest.raises(Conflict):
            await store.commit(before, replace(before, turns=9))
        for bystander in bystanders:
            assert await store.refresh(bystander) is bystander

    @pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "sharing a log"])
    async def test_a_commit_quotes_no_tenant_thread_that_was_forgotten_meanwhile(
        self, store: Store, is_shared: bool
    ) -> None:
        """Its turn did not know yet, and a process that is killed behind it would leave the quote.
        Without the quote it is stored. A forgetting long before, and one of another tenant, are no
        matter."""
        label = "3f9c2a7714e0b6d2"
        quote = LookedUp((Round(b"call", (b"[3f9c2a77.m1] canary",)),), None, 9)
        elsewhere = LookedUp((Round(b"call", (b"[0123abcd.m1] kept",)),), None, 9)
        if is_shared:
            before = (await self._shared(store)).stored["A"]
        else:
            before = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())

        async def forget(tenant: str, at: float) -> None:
            gone = Key(tenant, KEY.resource, "gone")
            await store.commit(Memory(key=gone), MemoryBuilder(gone).chat(2).memory())
            await store.forget(gone, None, Event(at, Forgotten(label=label, forgotten_at="now")))

        async def say(before: Memory, look_ups: LookedUp | None) -> Memory:
            message = replace(before.tail[-1], seq=before.next_seq, at=NOW, look_ups=look_ups)
            after = replace(before, tail=(*before.tail, message), next_seq=before.next_seq + 1)
            if is_shared:
                return (await store.commit_shared(Change(before, after), None))[0]
            return await store.commit(before, after)

        await forget("stranger", NOW)
        before = await say(before, quote)
        await forget(KEY.tenant, NOW - 60)
        before = await say(before, quote)
        await forget(KEY.tenant, NOW)
        with pytest.raises(Conflict):
            await say(before, quote)
        assert (await store.load(before.key)).tail[-1].seq == before.tail[-1].seq
        before = await say(before, elsewhere)
        before = await say(before, None)
        assert [message.look_ups for message in before.tail[-2:]] == [elsewhere, None]

    async def test_a_batch_takes_what_is_left_of_its_tenant(self, store: Store) -> None:
        """All threads of the resource go: what is left of it for now quotes none of them."""
        keys = [KEY._replace(thread=f"{number:03}") for number in range(102)]
        for key in keys:
            await store.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())
        stranger = KEY._replace(tenant="stranger", thread=keys[-1].thread)
        kept = await store.commit(Memory(key=stranger), MemoryBuilder(stranger).chat(2).memory())
        batch = await store.forget_batch(KEY.tenant, KEY.resource)
        assert not batch.is_last
        left = [key for key in keys if key not in batch.threads]
        for key in left:
            assert [m.look_ups for m in await store.messages(key, 0)] == [None, None]
        assert await store.refresh(kept) is kept
        assert await store.load(stranger) == kept

    async def test_forgetting_drops_a_reflection_in_the_making(self, store: Store) -> None:
        """The pending reflection and the one under way are dropped, because both were made from
        what is gone."""
        s = await self._shared(store)
        made = s.led.reflection(s.led.log)
        s.led.reflect()
        await s.commit_shared_log()
        await s.forget("A")
        shared_log = await store.load(resource_key(KEY))
        assert shared_log.log.reflection is None
        assert transitions.keep_reflection(shared_log, made) == shared_log

    async def test_forgetting_a_thread_that_has_left(self, store: Store) -> None:
        """The shared log's notes about it go as well."""
        s = await self._shared(store, reflected=True)
        shared_log = replace_log(
            s.stored[RESOURCE_THREAD],
            entries=(replace(s.stored[RESOURCE_THREAD].log.entries[0], sources=()),),
        )
        s.stored[RESOURCE_THREAD] = await store.commit(s.stored[RESOURCE_THREAD], shared_log)
        s.led.shared_log, s.led.past = replace(shared_log, version=0), []
        s.led.leave("A")
        await s.commit("A")
        await store.forget(s.stored["A"].key)
        assert (await store.load(resource_key(KEY))).log.entries == ()
        assert (await store.load(s.stored["B"].key)).coverage == 0

    async def test_with_the_last_thread_its_shared_log_goes(self, store: Store) -> None:
        s = await self._shared(store)
        for name in "AB":
            await store.forget(s.stored[name].key)
        assert await store.load(resource_key(KEY)) == Memory(key=resource_key(KEY))
        assert await store.generations(resource_key(KEY), 99) == ()

    async def test_forgetting_is_a_resources_own(self, store: Store) -> None:
        """Another resource's log and texts, under the same names, stay unchanged."""
        s = await self._shared(store)
        secret = await store.secret()
        theirs = SharedStore(
            store, "AB", resource_key(OTHER_TENANT_KEY), lambda key: label_thread(secret, key)
        )
        theirs.led.say("A", 3)
        await theirs.commit("A")
        await s.forget("A")
        assert await store.load(theirs.stored["A"].key) == theirs.stored["A"]
        assert await store.load(resource_key(OTHER_TENANT_KEY)) == theirs.stored[RESOURCE_THREAD]

    # ── lists ──

    async def test_threads_in_key_order(self, store: Store) -> None:
        """Threads are listed in key order, page by page, of one tenant, one resource, or all."""
        keys = [Key(*parts) for parts in itertools.product("ab", ["r", "s"], ["x", "y", "é"])]
        for key in reversed(keys):
            await store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
        listed = [info.key for info in await store.threads(None)]
        assert listed == keys
        assert [info.key for info in await store.threads("a")] == keys[:6]
        assert [info.key for info in await store.threads("b", "s")] == keys[9:]
        assert [info.key for info in await store.threads(None, "s")] == keys[3:6] + keys[9:]
        assert [info.key for info in await store.threads(None, None, keys[3], 4)] == keys[4:8]
        assert [info.key for info in await store.threads("a", None, keys[4])] == keys[5:6]
        assert await store.threads("c") == ()

    async def test_line_of_a_list(self, store: Store) -> None:
        """A line holds the live messages, generation, title and failures as last committed. The
        time of creation stays."""
        thread = MemoryBuilder().chat(6)
        first = await store.commit(Memory(key=KEY), thread.memory())
        [line] = await store.threads(KEY.tenant)
        assert (line.key, line.turn_at, line.messages, line.generation, line.title) == (
            KEY,
            None,
            6,
            0,
            None,
        )
        assert (line.failures, line.parked, line.cause) == (0, False, "")
        thread.cover(2).supersede([6]).more = small_things()
        await store.commit(first, thread.swap_reflection().memory())
        [info] = await store.threads(KEY.tenant)
        assert info[:9] == (
            KEY,
            line.created_at,
            1_700_000_001.125,
            5,
            1,
            "Holidays",
            3,
            True,
            "observe om_cut_off",
        )
        assert 1.7e9 < line.created_at < 1e10

    # ── forget ──

    async def test_forget_removes_every_row(self, store: Store) -> None:
        """A forgotten thread is unknown to every method, and the number of its messages was
        returned."""
        thread = MemoryBuilder().chat(8)
        interrupted = thread.interrupt_reply(item("broken"))
        memory = await store.commit(Memory(key=KEY), thread.memory(), [interrupted])
        memory = await store.commit(memory, thread.cover(2).cover(1).keep_reflection().memory())
        thread.swap_reflection().cover(2).chunk(1).keep_reflection().supersede([8])
        await store.commit(memory, replace(thread.memory(), due_at=1.0))
        await store.lease(KEY, "me", 60)
        removed = await store.forget(KEY)
        assert removed[:5] == (1, 9, 5, 2, 1)
        assert (removed.database == "until_rewrite") == (
            (await store.describe()).erases == "rewrite"
        )
        assert await read_everything(store, KEY) == (Memory(key=KEY), ((), ()), (), (), (), ())
        assert (
            await store.version(KEY),
            await store.messages(KEY, 0),
            await store.due_threads(9.0, 9),
        ) == (0, (), ())
        assert await store.lease(KEY, "you", 60)

    async def test_work_in_flight_cannot_bring_a_thread_back(self, store: Store) -> None:
        """A commit on a forgotten thread conflicts, also after the thread was made anew: versions
        are never repeated."""
        old = [await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())]
        old.append(await store.commit(old[0], replace(old[0], turns=1)))
        await store.forget(KEY)
        for stale in old:
            with pytest.raises(Conflict):
                await store.commit(stale, replace(stale, turns=9))
        assert await store.load(KEY) == Memory(key=KEY)
        anew = await store.commit(Memory(key=KEY), MemoryBuilder().chat(1, "anew").memory())
        assert anew.version > old[1].version
        for stale in old:
            with pytest.raises(Conflict):
                await store.commit(stale, replace(stale, turns=9))
        assert await store.load(KEY) == anew
        assert [m.seq for m in await store.messages(KEY, 0)] == [1]

    # ── another credential ──

    @pytest.mark.parametrize("steps", MOVES.values(), ids=MOVES)
    async def test_a_moved_thread_is_as_if_it_had_always_been_there(
        self, store: Store, steps: Sequence[Step], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store returns about a moved thread what it would return if every message had come under
        the new tenant."""
        old, before = MemoryBuilder(), Memory(key=KEY)
        for step in steps:
            step(old)
            before = await store.commit(before, old.memory())
        interrupted = old.interrupt_reply(memory_builder.item("broken", "assistant"))
        old.more = small_things_with_attempt(old)
        before = await store.commit(before, old.memory(), [interrupted])
        await store.lease(KEY, "me", 60)
        third = Key("third", KEY.resource, KEY.thread)
        theirs = await store.commit(Memory(key=third), Memory(key=third, turns=1))
        await store.lease(third, "they", 60)

        monkeypatch.setattr(memory_builder, "item", moved_item)
        new = MemoryBuilder(OTHER_TENANT_KEY)
        for step in steps:
            step(new)
        new.interrupt_reply(moved_item("broken", "assistant"))
        new.drop_look_ups()  # they name threads by labels of the old tenant
        new.more = small_things_with_attempt(new)
        assert await store.move_tenant(
            KEY.tenant, OTHER_TENANT_KEY.tenant, moved_fingerprint
        ) == MoveResult(1, len(old.every))
        after = await store.load(OTHER_TENANT_KEY)
        assert after == new.memory(after.version, before.row_id)
        assert after.version > before.version
        assert await store.outline(OTHER_TENANT_KEY) == new.outline()
        assert await store.messages_by_seq(OTHER_TENANT_KEY, range(1, 99)) == tuple(
            new.every[seq] for seq in sorted(new.every)
        )
        assert await store.generations(OTHER_TENANT_KEY, new.generation) == new.generations(
            new.generation
        )
        assert await read_everything(store, KEY) == (Memory(key=KEY), ((), ()), (), (), (), ())
        assert await store.load(third) == theirs
        assert not await store.lease(third, "you", 60)
        assert await store.lease(OTHER_TENANT_KEY, "you", 60)
        assert await store.lease(KEY, "you", 60)
        with pytest.raises(Conflict):
            await store.commit(before, replace(before, turns=9))
        assert (
            await store.move_tenant(KEY.tenant, OTHER_TENANT_KEY.tenant, moved_fingerprint)
            == MoveResult()
        )

    @pytest.mark.parametrize("reflected", [False, True], ids=["entries", "a reflection over both"])
    async def test_a_moved_log_calls_its_threads_as_the_new_tenant_does(
        self, store: Store, reflected: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The parts of a moved log continue after the same messages, so that each thread is covered
        as before. No text holds an old name."""
        s = await self._shared(store, reflected=reflected)
        names = {name: voice.label for name, voice in s.led.voices.items()}
        told = replace(s.stored["B"], other_threads_text=f'<other-conversation id="{names["A"]}">')
        await store.commit_shared(Change(s.stored["B"], told), None)

        secret, shared_log = await store.secret(), resource_key(OTHER_TENANT_KEY)
        monkeypatch.setattr(
            sharing,
            "item",
            lambda *said: replace(item_of(*said), fp=moved_fingerprint(item_of(*said).raw, "chat")),
        )
        expected = sharing.Resource(
            "AB", key=shared_log, label=lambda key: label_thread(secret, key)
        )
        for name in "ABBA":
            expected.say(name, 3)
            expected.observe(name, 2)
            expected.activate(name)
        if reflected:
            expected.reflect()
            expected.swap("A")
        moved = await store.move_tenant(KEY.tenant, OTHER_TENANT_KEY.tenant, moved_fingerprint)
        assert moved == MoveResult(2, sum(len(voice.rows) for voice in s.led.voices.values()))
        log = await store.load(shared_log)
        assert log == replace(
            expected.shared_log, version=log.version, row_id=log.row_id, due_at=log.due_at
        )
        older = await store.generations(shared_log, log.log.generation)
        assert older == tuple(expected.past)
        assert not any(name in str((log, older)) for name in names.values())
        for name, voice in expected.voices.items():
            thread = await store.load(voice.memory.key)
            others = (
                f'<other-conversation id="{expected.voices["A"].label}">' if name == "B" else ""
            )
            stored = {"version": thread.version, "row_id": thread.row_id, "due_at": thread.due_at}
            assert thread == replace(voice.memory, **stored, other_threads_text=others)
            assert log_sharing.is_consistent(log_sharing.attach_log(thread, log, voice.label))
        assert await store.load(resource_key(KEY)) == Memory(key=resource_key(KEY))

    @pytest.mark.parametrize("what", ["a thread", "a shared log"])
    async def test_nothing_moves_onto_what_is_there(self, store: Store, what: str) -> None:
        """If both tenants have a thread of one name, no thread moves: the operator decides first
        what happens to both."""
        s = await self._shared(store)
        key = s.stored["A"].key if what == "a thread" else resource_key(KEY)
        theirs = key._replace(tenant=OTHER_TENANT_KEY.tenant)
        await store.commit(Memory(key=theirs), Memory(key=theirs, turns=1))
        stood = [await store.load(memory.key) for memory in s.stored.values()]
        assert await store.move_tenant(
            KEY.tenant, OTHER_TENANT_KEY.tenant, moved_fingerprint
        ) == MoveResult(name_conflicts=1)
        assert [await store.load(memory.key) for memory in s.stored.values()] == stood
        assert len(await store.threads(OTHER_TENANT_KEY.tenant)) == (what == "a thread")

    async def test_a_message_that_cannot_be_read_keeps_its_fingerprint(self, store: Store) -> None:
        thread = MemoryBuilder().chat(3)
        await store.commit(Memory(key=KEY), thread.memory())
        odd = thread.every[2].item.raw
        await store.move_tenant(
            KEY.tenant,
            OTHER_TENANT_KEY.tenant,
            lambda raw, api: None if raw == odd else moved_fingerprint(raw, api),
        )
        moved = (await store.load(OTHER_TENANT_KEY)).tail
        assert [m.item.fp == thread.every[m.seq].item.fp for m in moved] == [False, True, False]
        assert moved[2].chain == extend_chain(
            extend_chain(extend_chain(EMPTY_CHAIN, moved[0].item.fp), moved[1].item.fp),
            moved[2].item.fp,
        )

    # ── tenants ──

    @pytest.mark.parametrize(
        "stranger",
        [
            OTHER_TENANT_KEY,
            Key(KEY.tenant, "other", KEY.thread),
            Key(KEY.tenant, KEY.resource, "other"),
        ],
    )
    async def test_no_method_reaches_another_key(self, store: Store, stranger: Key) -> None:
        """With a key that differs in one part, no method reads or changes anything of a thread."""
        thread = MemoryBuilder().chat(6)
        first = await store.commit(Memory(key=KEY), thread.memory())
        memory = await store.commit(
            first, replace(thread.cover(2).swap_reflection().cover(1).memory(), due_at=5.0)
        )
        edited = edits.edit_entry(memory, memory.log.entries[0].id, "* edited", 1, 7.5)
        assert edited is not None
        memory = await store.commit(memory, edited)
        await store.lease(KEY, "me", 60)
        stood = await read_everything(store, KEY)

        assert await store.load(stranger) == Memory(key=stranger)
        assert await store.version(stranger) == 0
        assert await store.outline(stranger) == ((), ())
        assert (
            await store.messages(stranger, 0),
            await store.messages_by_seq(stranger, [1, 2, 3]),
        ) == (
            (),
            (),
        )
        assert await store.stored_messages(stranger, 0, limit=9) == ()
        assert await store.observations(stranger, 0, limit=9) == ()
        assert await store.generation_entries(stranger, -1, limit=9) == ()
        assert await store.generations(stranger, 9) == ()
        assert await store.beginnings(stranger) == {}
        erasure = NoteErasure(stranger, memory.version, memory.log.entries)
        with pytest.raises(Conflict):
            await store.commit_erasing(Change(memory, memory), [erasure])
        assert await store.forget(stranger) == ForgetResult()
        assert await store.lease(stranger, "you", 60)
        await store.release(stranger, "me")
        with pytest.raises(Conflict):
            await store.commit(
                replace(memory, key=stranger), replace(memory, key=stranger, turns=9)
            )
        assert await read_everything(store, KEY) == stood

        theirs = await store.commit(
            Memory(key=stranger), MemoryBuilder(stranger).chat(3, "theirs").memory()
        )
        assert await store.load(KEY) == memory
        assert await store.load(stranger) == theirs
        assert (await store.forget(stranger))[:5] == (1, 3, 0, 0, 0)
        assert await read_everything(store, KEY) == stood
        assert not await store.lease(KEY, "you", 60)

    async def test_lists_are_a_tenants_own(self, store: Store) -> None:
        """A tenant's list holds no other tenant's thread, not even from another's cursor."""
        for key in (KEY, OTHER_TENANT_KEY):
            await store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
        assert [info.key for info in await store.threads(KEY.tenant)] == [KEY]
        assert [info.key for info in await store.threads(KEY.tenant, None, OTHER_TENANT_KEY)] == [
            KEY
        ]
        assert await store.threads(OTHER_TENANT_KEY.tenant, None, KEY) == ()

    # ── the store itself ──

    async def test_totals_of_an_empty_store(self, store: Store) -> None:
        """A lease belongs to no thread."""
        await store.lease(Key("", "", "totals"), "me", 60)
        assert await store.totals(1e11) == StoreTotals()

    async def test_totals_count_every_thread_once(self, store: Store) -> None:
        """Every tenant's, with a log of their own or of their resource, reflected or not."""
        keys = [KEY, OTHER_TENANT_KEY, KEY._replace(thread="raw")]
        thread = await store_covered(store, KEY, 9, 2)
        thread.cover(2).keep_reflection().swap_reflection().cover(2).chunk(1)
        await store.commit(await store.load(KEY), thread.memory())
        await store_covered(store, OTHER_TENANT_KEY, 3, 2)
        await store.commit(Memory(key=keys[2]), MemoryBuilder(keys[2]).chat(4).memory())
        shared = await self._shared(store, reflected=True)
        keys += [memory.key for memory in shared.stored.values()]
        memories = [await store.load(key) for key in keys]
        # a thread shows its resource's log, which counts where it is stored
        logs = [m.log for m in memories if m.scope == "thread" or m.key.thread == RESOURCE_THREAD]
        tokens = {
            kind: sum(e.tokens for log in logs for e in log.entries if e.kind == kind)
            for kind in ("observation", "reflection")
        }
        assert min(tokens.values()) > 0
        totals = await store.totals(0.0)
        assert totals == StoreTotals(
            sum(memory.pending_tokens for memory in memories),
            tokens["observation"],
            tokens["reflection"],
        )
        await store.forget(OTHER_TENANT_KEY)
        assert (await store.totals(0.0)).observations_tokens < totals.observations_tokens

    async def test_totals_of_due_and_parked_threads(self, store: Store) -> None:
        """Due work that another process has taken up is not due."""
        for name, due in {"early": 10.0, "late": 30.0, "never": None, "parked": None}.items():
            await self._due_at(store, Key("t", "r", name), due)
        await self._due_at(store, Key("another", "r", "early"), 10.0)
        parked = await store.load(Key("t", "r", "parked"))
        await store.commit(parked, replace(parked, failures=Failures(suspended=True)))
        assert (await store.totals(9.9))[3:] == (0, 1)
        assert (await store.totals(10.0))[3:] == (2, 1)
        assert (await store.totals(30.0))[3:] == (3, 1)
        await store.lease(Key("t", "r", "early"), "me", 60)
        assert (await store.totals(30.0))[3:] == (2, 1)

    async def test_clock_is_the_one_that_leases_end_by(self, store: Store) -> None:
        """It goes on, and it is that of unix time, as far as machines agree on it."""
        first, second = await store.clock(), await store.clock()
        assert first <= second
        assert abs(first - time.time()) < 86_400

    async def test_promise_is_whole(self, store: Store) -> None:
        """A store says what it is, what a power cut takes, when forgotten bytes go, and which schema
        it has."""
        promise = await store.describe()
        assert promise.kind
        assert promise.durable in get_args(Durability)
        assert (promise.durable == "process") == (not self.durable)
        assert promise.erases in get_args(Erasure)
        assert promise.schema_version >= 0
        assert list_promises(promise)
        await store.check_schema()

    async def test_ping_answers(self, store: Store) -> None:
        """A ping of a healthy store returns nothing and changes nothing."""
        memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
        await store.ping()
        assert await store.load(KEY) == memory

    async def test_secret_is_made_once(self, another: Opener) -> None:
        """All callers get the same 32 bytes, however many ask first and however the store is opened
        again."""
        stores = [await another() for _ in range(3 if self.durable else 1)]
        secrets = await asyncio.gather(*(store.secret() for store in stores * 2))
        await stores[0].forget(KEY)
        assert {await stores[-1].secret(), *secrets} == {secrets[0]}
        assert len(secrets[0]) == 32
        assert len(set(secrets[0])) > 8  # 32 random bytes repeat too rarely for fewer

    async def test_closed_store_raises(self, another: Opener) -> None:
        """Every use after close is a StorageError; closing twice is allowed."""
        store = await another()
        await store.close()
        await store.close()
        for use in (
            store.ping(),
            store.load(KEY),
            store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory()),
        ):
            with pytest.raises(StorageError):
                await use

    async def test_two_stores_share_one_truth(self, another: Opener) -> None:
        """Another store sees a commit at once, and its own commit on the outdated version
        conflicts."""
        if not self.durable:
            pytest.skip("lives in one store only")
        one, two = await another(), await another()
        first = await one.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        assert await two.load(KEY) == first
        second = await two.commit(first, replace(first, turns=1))
        with pytest.raises(Conflict):
            await one.commit(first, replace(first, turns=2))
        assert await one.load(KEY) == second
        assert await two.lease(KEY, "two", 60)
        assert not await one.lease(KEY, "one", 60)

    @pytest.mark.parametrize("writers", [2, 4])
    async def test_concurrent_turns_lose_nothing(self, another: Opener, writers: int) -> None:
        """Writers in several stores that load and try again on conflict get all their turns stored,
        each once."""
        stores = [await another() for _ in range(writers if self.durable else 1)]

        async def turns(store: Store, who: int) -> None:
            for n in range(5):
                while True:
                    memory = await store.load(KEY)
                    thread = MemoryBuilder()
                    thread.next_seq = memory.next_seq
                    said = thread._store(item(f"{who}.{n}"))
                    new = Message(said, item(f"{who}.{n}"), bytes(16), 1, 1.0)
                    try:
                        await store.commit(
                            memory, replace(memory, tail=(*memory.tail, new), next_seq=said + 1)
                        )
                        break
                    except Conflict:
                        continue

        await asyncio.gather(*(turns(stores[who % len(stores)], who) for who in range(4)))
        said = [m.item.raw.decode() for m in await stores[0].messages(KEY, 0)]
        assert sorted(said) == sorted(f"{who}.{n}" for who in range(4) for n in range(5))

    def test_shared_logs_are_as_the_rules_have_them(self, opener: Opener) -> None:
        """The store agrees with the pure functions on any steps of threads that share a log."""
        with asyncio.Runner() as runner:
            store = [runner.run(opener())]
            numbers = itertools.count()
            try:
                run_state_machine_as_test(
                    lambda: SharedMachine(runner, store, next(numbers)), settings=self._thin(SHARED)
                )
            finally:
                runner.run(store[0].close())

    @pytest.mark.parametrize("scope", ["thread", "resource"])
    def test_people_lose_no_change(self, opener: Opener, scope: Scope) -> None:
        """What people change stands, whatever else happens to the notes meanwhile; an undo gives
        the bytes back."""
        with asyncio.Runner() as runner:
            stores = [runner.run(opener()) for _ in range(2 if self.durable else 1)]
            numbers = itertools.count()
            try:
                run_state_machine_as_test(
                    lambda: PeopleMachine(runner, stores, scope, next(numbers)),
                    settings=self._thin(PEOPLE),
                )
            finally:
                for store in stores:
                    runner.run(store.close())

    def test_store_is_a_dictionary(self, opener: Opener) -> None:
        """The store agrees with a dictionary of threads on any steps in any order."""
        with asyncio.Runner() as runner:
            store = [runner.run(opener())]
            numbers = itertools.count()

            def machine() -> StoreMachine:
                return StoreMachine(runner, store, opener if self.durable else None, next(numbers))

            try:
                run_state_machine_as_test(machine, settings=self._thin(MACHINE))
            finally:
                runner.run(store[0].close())
