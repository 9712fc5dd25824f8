"""People change notes by the program's own performers, at two desks on one store, between turns, forks
and the work of memory models: through random steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace

from om_proxy.common.errors import BadRequest, Moved, NotFound
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.management.message_reader import MessagePlaces
from om_proxy.management.note_editor import NoteEditor
from om_proxy.management.pin_board import PinBoard
from om_proxy.memory.lifecycle import branch, transitions
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    Key,
    Memory,
    Message,
    Observation,
    ObservationLog,
    Reflection,
    Scope,
    SharedLogRef,
    extend_chain,
    resource_key,
    sum_framed_tokens,
)
from om_proxy.memory.notes import sections
from om_proxy.settings.config import parse
from om_proxy.storage.base import Store
from tests.memory.building import item
from tests.memory.sharing import NOW
from tests.simulation.changes import Changes, Covered
from tests.simulation.words import ids_in, markers_in, rewritten
from tests.storage.store_machine import MACHINE
from tests.support.long_forms import IS_LONG
from tests.support.policies import build_policies

PEOPLE = settings(MACHINE, max_examples=12 if IS_LONG else 3, stateful_step_count=30)
LABELS = {"A": "a" * 16, "B": "b" * 16}

names = st.sampled_from("AB")
desks = st.integers(0, 1)
numbers = st.integers(1, 4)
indexes = st.integers(0, 20)
# what a person does, and to which entry, chunk or pin
ACTS = [
    "edit",
    "edit",
    "edit",
    "withdraw",
    "forget",
    "undo",
    "undo",
    "edit_chunk",
    "drop_chunk",
    "pin",
    "edit_pin",
    "unpin",
]
wishes = st.tuples(
    st.sampled_from(ACTS),
    names,
    desks,
    indexes,
)
Wish = tuple[str, str, int, int]


@dataclass(frozen=True)
class Desk:
    """A process that people and memory models use. It has a cache of its own."""

    memories: Memories
    editor: NoteEditor
    pins: PinBoard

    @classmethod
    def on(cls, store: Store) -> Desk:
        policies = build_policies(parse("memory: {observation: {redact: false}}"))
        memories = Memories(store, policies, clock=now, label=label_thread)
        steering = (memories, policies, count_words, now)
        return cls(memories, NoteEditor(*steering), PinBoard(*steering))


def label_thread(key: Key) -> str:
    return LABELS.get(key.thread, "c" * 16)


def now() -> float:
    return NOW


def count_words(text: str) -> int:
    return len(text.split())


class PeopleMachine(RuleBasedStateMachine):
    """Two threads, each with a log of its own or with the one of their resource. Every message has
    an id, notes name the ids of what they cover, and people write markers. After each commit
    everything is read again from the store, and compared with what stood before."""

    def __init__(
        self, runner: asyncio.Runner, stores: Sequence[Store], scope: Scope, number: int
    ) -> None:
        super().__init__()
        self.runner, self.store, self.scope = runner, stores[0], scope
        self.desks = [Desk.on(stores[0]), Desk.on(stores[-1])]
        self.keys = {name: Key(f"{scope} {number}", "r", name) for name in LABELS}
        self.live: dict[str, list[Message]] = {name: [] for name in LABELS}
        self.steps = count(1)
        self.changes = Changes(lambda: next(self.steps))
        self.numbers = count(1)
        self.seen = {key: Memory(key=key, scope=scope) for key in self.keys.values()}
        self.logs: dict[Key, ObservationLog] = {}

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def log_key(self, name: str) -> Key:
        key = self.keys[name]
        return resource_key(key) if self.scope == "resource" else key

    def load(self, name: str, desk: int) -> Memory:
        memory: Memory = self.run(self.desks[desk].memories.load(self.keys[name], self.scope))
        return memory

    def change(self, name: str, desk: int, change: Callable[[Memory], Memory]) -> None:
        self.run(self.desks[desk].memories.update(self.keys[name], change, self.scope))
        self.look()

    @initialize()
    def begin(self) -> None:
        for name in "ABAB":
            self.say(name, 4, 0)
            self.observe(name, 4, 0, None)
            self.activate(name, 1, 0, None)
        for name in "AB":
            self.say(name, 4, 1)
            self.observe(name, 2, 1, None)

    # ── clients and models; a person may come in between ──

    @rule(name=names, number=numbers, desk=desks)
    def say(self, name: str, number: int, desk: int) -> None:
        def append(memory: Memory) -> Memory:
            fresh: list[Message] = []
            for _ in range(number):
                one = item(
                    ("user", "assistant")[(len(self.live[name]) + len(fresh)) % 2],
                    f"{name}{next(self.numbers)}",
                )
                before = fresh[-1].chain if fresh else memory.chain
                seq = memory.next_seq + len(fresh)
                fresh.append(Message(seq, one, extend_chain(before, one.fp), 6, NOW))
            return replace(memory, tail=(*memory.tail, *fresh), next_seq=memory.next_seq + number)

        self.change(name, desk, append)

    @rule(name=names, number=numbers, desk=desks, meets=st.none() | wishes)
    def observe(self, name: str, number: int, desk: int, meets: Wish | None) -> None:
        memory = self.load(name, desk)
        messages = [m for m in memory.tail if m.seq > memory.chunked_to][:number]
        if messages:
            chunk = self._chunk(memory, messages)
            self._meet(meets)
            self.change(name, desk, lambda found: transitions.add_chunk(found, chunk))

    @staticmethod
    def _chunk(memory: Memory, messages: Sequence[Message]) -> Observation:
        said = sorted(ids_in(" ".join(m.item.raw.decode() for m in messages)))
        return Observation(
            id=0,
            after=memory.chunked_to,
            last=messages[-1].seq,
            chain=messages[-1].chain,
            text=f"* {' '.join(said)}",
            tokens=4,
            source_tokens=sum_framed_tokens(messages),
            at=NOW,
        )

    @rule(name=names, number=numbers, desk=desks, meets=st.none() | wishes)
    def activate(self, name: str, number: int, desk: int, meets: Wish | None) -> None:
        ids = [chunk.id for chunk in self.load(name, desk).chunks[:number]]
        self._meet(meets)
        self.change(name, desk, lambda found: transitions.activate_chunks(found, ids, NOW))

    @rule(
        name=names,
        start=indexes,
        number=numbers,
        desk=desks,
        meets=st.none() | wishes,
        swaps=st.booleans(),
    )
    def reflect(
        self, name: str, start: int, number: int, desk: int, meets: Wish | None, swaps: bool
    ) -> None:
        log = self.load(name, desk).log
        sources = log.entries[start % max(len(log.entries), 1) :][:number]
        if not any(entry.text for entry in sources):
            return
        made = self._reflection(log, sources)
        self._meet(meets)
        self.change(name, desk, lambda found: transitions.keep_reflection(found, made))
        if swaps:
            self.swap(name, desk)

    @staticmethod
    def _reflection(log: ObservationLog, sources: Sequence[Observation]) -> Reflection:
        """One that says all its sources say."""
        said: dict[str | None, list[str]] = {}
        for entry in sources:
            for section in sections.split_entry(entry):
                said.setdefault(section.label, []).append(section.text)
        joined = [sections.Section(label, "\n".join(texts)) for label, texts in said.items()]
        shared = any(entry.parts for entry in sources)
        text = sections.render_sections(joined) if shared else "\n".join(said[None])
        ids = tuple(entry.id for entry in sources)
        return Reflection(
            generation=log.generation, sources=ids, text=text, tokens=1, source_tokens=9, at=NOW
        )

    @rule(name=names, desk=desks)
    def swap(self, name: str, desk: int) -> None:
        self.change(name, desk, lambda found: transitions.swap_reflection(found, NOW))

    @rule(name=names, back=st.integers(1, 9), desk=desks)
    def fork(self, name: str, back: int, desk: int) -> None:
        """The client goes back, and all older generations are kept."""
        live, memory = self.live[name], self.load(name, desk)
        cut = live[-back - 1].seq if back < len(live) else 0
        if cut < memory.coverage:
            older = self.run(self.store.generations(self.log_key(name), memory.log.generation))
            chains = {m.seq: m.chain for m in live}
            entries, note_seq = branch.find_rollback_target(memory, cut, older, chains)
            assert note_seq is None
            reach = branch.find_coverage(memory, entries)
            covered = [m for m in live if m.seq <= reach]
            tail = [m for m in live if m.seq > reach]
            counts = (len(covered), sum_framed_tokens(covered))
            marks = [m.mark for m in covered]
            rolled = branch.roll_back(memory, cut, entries, marks, tail, counts, NOW)
        else:
            rolled = memory
        kept = tuple(chunk for chunk in rolled.chunks if chunk.last <= cut)
        tail = [m for m in rolled.tail if m.seq <= cut]
        after = replace(rolled, tail=tuple(tail), chunks=kept)
        if after != memory:
            self.run(self.desks[desk].memories.commit(memory, after))
            self.look()

    # ── people ──

    @rule(wish=wishes)
    def wish(self, wish: Wish) -> None:
        self._meet(wish)

    def _meet(self, wish: Wish | None) -> None:
        """A person comes in, and may be refused what no longer is there."""
        if wish is None:
            return
        act, name, desk, index = wish
        log = self.log_key(name)
        # each act announces itself, so that what nobody has asked for is told from it
        pinning, dropping = "pin" in act, act == "drop_chunk"
        self.changes.pinning[log] = int(pinning)
        self.changes.dropping[self.keys[name]] = int(dropping)
        # a refusal changes nothing: `look` finds the notes as they were
        with suppress(Moved, NotFound, BadRequest):
            self.run(getattr(self, f"_{act}")(self.keys[name], self.desks[desk], index))
        self.look()
        self.changes.pinning.clear()
        self.changes.dropping.clear()

    def _marker(self, letter: str = "m") -> str:
        return f"{letter}{next(self.numbers)}"

    async def _edit(self, key: Key, desk: Desk, index: int) -> None:
        entry = pick((await desk.memories.load_known(key)).log.entries, index)
        if entry:
            marker = self._marker()
            text = rewritten(entry.text, marker) if index % 3 else f"* {marker}"
            changed = await desk.editor.edit_entry(key, entry.id, text)
            assert changed.entry.text == text

    async def _withdraw(self, key: Key, desk: Desk, index: int) -> None:
        entry = pick((await desk.memories.load_known(key)).log.entries, index)
        if entry:
            await desk.editor.withdraw_entry(key, entry.id)

    async def _forget(self, key: Key, desk: Desk, index: int) -> None:
        """The words are stored nowhere any more."""
        memory = await desk.memories.load_known(key)
        entry = pick(memory.log.entries, index)
        if entry:
            await desk.editor.forget_entry(key, entry.id)
            log = await self.store.load(self.log_key(key.thread))
            older = await self.store.generations(log.key, log.log.generation)
            gone = set(self._find_covered(entry).values())
            texts = [kept.text for _, entries in older for kept in entries]
            texts += [log.log.reflection.text] if log.log.reflection else []
            assert not gone & ids_in(" ".join(texts))

    async def _undo(self, key: Key, desk: Desk, _: int) -> None:
        await desk.editor.undo(key)

    async def _edit_chunk(self, key: Key, desk: Desk, index: int) -> None:
        chunk = pick((await desk.memories.load_known(key)).chunks, index)
        if chunk:
            await desk.editor.edit_chunk(key, chunk.id, rewritten(chunk.text, self._marker()))

    async def _drop_chunk(self, key: Key, desk: Desk, index: int) -> None:
        chunk = pick((await desk.memories.load_known(key)).chunks, index)
        if chunk:
            await desk.editor.drop_chunk(key, chunk.id)

    async def _pin(self, key: Key, desk: Desk, _: int) -> None:
        await desk.pins.add(key, self._marker("p"), "own")

    async def _edit_pin(self, key: Key, desk: Desk, index: int) -> None:
        pin = pick((await desk.pins.load(key)).log.pins, index)
        if pin:
            await desk.pins.edit(key, pin.id, self._marker("p"), "own")

    async def _unpin(self, key: Key, desk: Desk, index: int) -> None:
        pin = pick((await desk.pins.load(key)).log.pins, index)
        if pin:
            await desk.pins.remove(key, pin.id)

    # ── what must hold ──

    def look(self) -> None:
        """Read everything again, and compare it with what stood before."""
        for name, key in self.keys.items():
            self.live[name] = list(self.run(self.store.messages(key, 0)))
        for log_key in dict.fromkeys(map(self.log_key, self.keys)):
            log = self.run(self.store.load(log_key)).log
            before = self.logs.get(log_key, ObservationLog())
            self.changes.note_log(log_key, before, log, self._find_covered_by(log_key))
            self.logs[log_key] = log
        for name, key in self.keys.items():
            self._look_at(name, key)
        live = self._places()
        for log_key, log in self.logs.items():
            self.changes.check_log(log_key, log.entries, live, set(), moves=False)

    def _look_at(self, name: str, key: Key) -> None:
        thread, log = self.run(self.store.load(key)), self.logs[self.log_key(name)]
        if not thread.version:
            return
        before, self.seen[key] = self.seen[key], thread
        self.changes.note_chunks(before, thread, partial(self._find_in_thread, name))
        covered = self._find_between(name, 0, thread.coverage)
        chunked = self._find_between(name, 0, thread.chunked_to)
        self.changes.settle(name, set(covered.values()), set(chunked.values()))
        self.changes.check_chunks(before, thread, self.log_key(name), log.entries, self._places())
        self._check_ranges(name, thread, log)

    def _check_ranges(self, name: str, thread: Memory, log: ObservationLog) -> None:
        """Coverage has no gap, and every covered message is noted or excused."""
        chains = {0: EMPTY_CHAIN, **{m.seq: m.chain for m in self.live[name]}}
        end = 0
        for entry in log.entries:
            for after, last, chain in self._ranges(name, entry):
                assert (after, chains.get(last)) == (end, chain)
                end = last
        assert thread.coverage == end
        assert list(thread.tail) == [m for m in self.live[name] if m.seq > end]
        covered = [m for m in self.live[name] if m.seq <= end]
        shared = SharedLogRef(label=LABELS[name]) if self.scope == "resource" else None
        places = MessagePlaces(replace(thread, log=log, shared_log_ref=shared))
        for message in covered:  # from a message to its entry, and from an entry to its messages
            holders = [
                entry.id
                for entry in log.entries
                if any(after < message.seq <= last for after, last, _ in self._ranges(name, entry))
            ]
            assert [places.find(message.seq).entry] == holders
        assert thread.covered_count == len(covered)
        assert thread.covered_tokens == sum_framed_tokens(covered)
        for chunk in thread.chunks:
            assert (chunk.after, chains.get(chunk.last)) == (end, chunk.chain)
            end = chunk.last
        for entry in (*log.entries, *thread.chunks):
            about = set(self._find_between(name, 0, 0).values()) | {
                one for one in self._covered_ids(name, entry) if one[0] == name
            }
            told = {one for one in ids_in(entry.text) if one[0] == name}
            assert told <= about <= told | self.changes.excused()
        assert len(markers_in(*(e.text for e in log.entries))) <= len(self.changes.written)

    def _ranges(self, name: str, entry: Observation) -> list[tuple[int, int, bytes]]:
        if self.scope == "thread":
            return [(entry.after, entry.last, entry.chain)]
        return [part[1:4] for part in entry.parts if part.label == LABELS[name]]

    def _covered_ids(self, name: str, entry: Observation) -> set[str]:
        if not entry.parts:
            return set(self._find_between(name, entry.after, entry.last).values())
        return set(self._find_covered(entry).values())

    def _find_covered_by(self, log_key: Key) -> Callable[[Observation], Covered]:
        if self.scope == "thread":
            return partial(self._find_in_thread, log_key.thread)
        return self._find_covered

    def _find_covered(self, entry: Observation) -> Covered:
        found: dict[tuple[str, int], str] = {}
        letters = {label: name for name, label in LABELS.items()}
        for part in entry.parts:
            found |= self._find_between(letters[part.label], part.after, part.last)
        return found

    def _find_in_thread(self, name: str, entry: Observation) -> Covered:
        return self._find_between(name, entry.after, entry.last)

    def _find_between(self, name: str, after: int, last: int) -> dict[tuple[str, int], str]:
        return {
            (name, m.seq): next(iter(ids_in(m.item.raw.decode())))
            for m in self.live[name]
            if after < m.seq <= last
        }

    def _places(self) -> set[tuple[str, int]]:
        return {(name, m.seq) for name, live in self.live.items() for m in live}


def pick(found: Sequence[Any], index: int) -> Any:
    return found[index % len(found)] if found else None
