"""A thread with its whole past in plain lists, and the bounded Memory that follows from it. Stores
are compared with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from om_proxy.memory.ledger import Account, PromptMark, ThreadLedger
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    RECENT_MARKS,
    Cell,
    Failures,
    Generation,
    Item,
    Key,
    Memory,
    Message,
    Observation,
    ObservationLog,
    Reflection,
    ReplyOrigin,
    View,
    extend_chain,
    sum_framed_tokens,
)
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.storage.base import Store
from om_proxy.storage.values.stored_rows import MessageState, Outline, StoredMessage

KEY = Key("tenant", "resource", "thread")


def item(text: str, role: str = "user", **more: Any) -> Item:
    raw = text.encode("utf-8", "surrogatepass")
    return Item(
        raw, role, extend_chain(role.encode("utf-8", "surrogatepass").ljust(16), raw), **more
    )


def message(
    text: str, role: str = "user", calls: tuple[str, ...] = (), answers: str | None = None
) -> Item:
    """Return a message that an import takes: its JSON says what it is."""
    said: dict[str, Any] = {"role": role, "content": text}
    if calls:
        said |= {"tool_calls": [{"id": call, "type": "function"} for call in calls]}
    if answers is not None:
        said |= {"tool_call_id": answers}
    return item(json.dumps(said), role, calls=calls, answers=answers)


def full_item(text: str) -> Item:
    """Return a message of which no field is at its default."""
    origin = ReplyOrigin(b"response id 0123", "openai", is_stored=True, has_instructions=True)
    return item(text, calls=("call",), answers="other", api="responses", origin=origin)


def look_up(raw: bytes) -> LookedUp:
    """Return look-ups with this message in each of their messages."""
    one = Round(b'{"role":"assistant","calls":' + raw + b"}", (raw, raw + b" "))
    return LookedUp((one, one), one, 7)


class MemoryBuilder:
    """The thread. Steps change it in place; `memory()` is what a store must return after committing
    it."""

    def __init__(self, key: Key = KEY) -> None:
        self.key = key
        self.every: dict[int, Message] = {}
        self.parents: dict[int, int] = {}
        self.live: list[int] = []
        self.interrupted: set[int] = set()
        self.log: tuple[Observation, ...] = ()
        self.chunks: tuple[Observation, ...] = ()
        self.reflection: Reflection | None = None
        self.past: dict[int, tuple[Observation, ...]] = {}
        self.generation = 0
        self.next_seq = self.next_id = self.next_generation = 1
        self.more: dict[str, Any] = {}

    # ── what it implies ──

    @property
    def coverage(self) -> int:
        return self.log[-1].last if self.log else 0

    @property
    def covered(self) -> list[Message]:
        return [self.every[seq] for seq in self.live if seq <= self.coverage]

    @property
    def tail(self) -> list[Message]:
        return [self.every[seq] for seq in self.live if seq > self.coverage]

    @property
    def open(self) -> list[Message]:
        """Return the messages of the tail that are in no chunk."""
        end = self.chunks[-1].last if self.chunks else self.coverage
        return [m for m in self.tail if m.seq > end]

    def memory(self, version: int = 0, row_id: int = 0) -> Memory:
        return Memory(
            key=self.key,
            version=version,
            row_id=row_id,
            next_seq=self.next_seq,
            next_id=self.next_id,
            coverage=self.coverage,
            covered_count=len(self.covered),
            covered_tokens=sum_framed_tokens(self.covered),
            recent=tuple(m.mark for m in self.covered)[-RECENT_MARKS:],
            tail=tuple(self.tail),
            log=ObservationLog(
                entries=self.log,
                generation=self.generation,
                next_generation=self.next_generation,
                reflection=self.reflection,
                unproductive_tokens=41_000,
            ),
            chunks=self.chunks,
            **self.more,
        )

    def outline(self) -> Outline:
        superseded = [self.every[seq].mark for seq in sorted(self.every.keys() - set(self.live))]
        return Outline(
            tuple(self.every[seq].mark for seq in self.live),
            tuple((mark, self.parents[mark.seq]) for mark in superseded),
        )

    def stored(self) -> tuple[StoredMessage, ...]:
        return tuple(
            StoredMessage(self.every[seq], self.parents[seq], self._state(seq))
            for seq in sorted(self.every)
        )

    def _state(self, seq: int) -> MessageState:
        if seq in self.live:
            return "live"
        return "interrupted" if seq in self.interrupted else "superseded"

    def generations(self, before: int) -> tuple[Generation, ...]:
        return tuple(
            Generation(n, log)
            for n, log in sorted(self.past.items(), reverse=True)
            if n < before and log
        )

    # ── steps ──

    def say(self, *items: Item) -> MemoryBuilder:
        for one in items:
            self._set_live([*self.live, self._store(one)])
        return self

    def chat(self, count: int, text: str = "word") -> MemoryBuilder:
        """Add `count` different messages, of user and assistant alternately. The model has looked
        something up for every other reply."""
        roles = ("user", "assistant")
        new = [
            self._store(message(f"{text} {i} {self.next_seq}", roles[i % 2])) for i in range(count)
        ]
        for seq in new[1::4]:
            self.every[seq] = replace(self.every[seq], look_ups=look_up(message(text).raw))
        self._set_live([*self.live, *new])
        return self

    def drop_look_ups(self) -> None:
        self.every = {seq: replace(m, look_ups=None) for seq, m in self.every.items()}

    def interrupt_reply(self, one: Item) -> Message:
        """Add a reply that broke off: stored, never live. It goes into a commit as
        `interrupted`."""
        parent = self.live[-1] if self.live else 0
        seq = self._store(one)
        self.parents[seq] = parent
        self.interrupted.add(seq)
        self.every[seq] = replace(self.every[seq], chain=extend_chain(self._chain(parent), one.fp))
        return self.every[seq]

    def supersede(self, seqs: Iterable[int]) -> MemoryBuilder:
        """Supersede messages that the client took back. The log returns to entries that cover none
        of them."""
        gone = set(seqs)
        self._fall_back(min(gone) - 1)
        self._set_live([seq for seq in self.live if seq not in gone])
        return self

    def revive(self, seq: int) -> MemoryBuilder:
        """Make the branch that ends at `seq` live again."""
        path = [seq]
        while parent := self.parents[path[-1]]:
            path.append(parent)
        branch = path[::-1]
        common = [a for a, b in zip(self.live, branch, strict=False) if a == b]
        self._fall_back(common[-1] if common else 0)
        self._set_live(branch)
        return self

    def swap(self, seq: int, one: Item) -> MemoryBuilder:
        """Replace a message of the tail by the client's version."""
        self._fall_back(seq - 1)
        self.every[seq] = replace(self.every[seq], item=one, tokens=len(one.raw))
        self._set_live(self.live)
        return self

    def chunk(self, count: int, text: str = "* 🔴 noted") -> MemoryBuilder:
        """Observe the next `count` open messages."""
        self.chunks += (self._observation(self.open[:count], text),)
        return self

    def drop_chunks(self, keep: int) -> MemoryBuilder:
        self.chunks = self.chunks[:keep]
        return self

    def activate(self, count: int) -> MemoryBuilder:
        self.log, self.chunks = self.log + self.chunks[:count], self.chunks[count:]
        return self

    def cover(self, count: int) -> MemoryBuilder:
        return self.chunk(count).activate(1)

    def keep_reflection(self, start: int = 0) -> MemoryBuilder:
        """Keep a reflection of the log, from the index `start` on, as pending."""
        sources = tuple(o.id for o in self.log[start:])
        self.reflection = Reflection(
            generation=self.generation,
            sources=sources,
            text="shorter",
            tokens=1,
            source_tokens=9,
            at=3.5,
            task="t",
            model="m",
        )
        return self

    def swap_reflection(self) -> MemoryBuilder:
        """Replace the entries that the reflection was made from by the reflection."""
        replaced = self.reflection.sources if self.reflection else ()
        earlier = tuple(takewhile(lambda o: o.id not in replaced, self.log))
        if earlier == self.log:  # it was made from another log, or from all of this one
            earlier = ()
        after, depth = (earlier[-1].last if earlier else 0), 1 + max(o.depth for o in self.log)
        covered = [m for m in self.covered if m.seq > after]
        self.reflection = None
        made = replace(
            self._observation(covered, "shorter"), after=after, kind="reflection", depth=depth
        )
        self._next_generation((*earlier, made))
        return self

    def undo_reflection(self, generation: int) -> MemoryBuilder:
        """Return to the log of an older generation, in a new one. What that log does not cover is
        raw."""
        self._next_generation(self.past[generation])
        self.chunks = ()
        return self

    def _store(self, one: Item) -> int:
        seq = self.next_seq
        self.next_seq += 1
        self.every[seq] = Message(
            seq,
            one,
            EMPTY_CHAIN,
            len(one.raw),
            1_700_000_000.25 + seq,
            "o200k_base" if seq % 3 else "",
        )
        return seq

    def _chain(self, seq: int) -> bytes:
        return self.every[seq].chain if seq else EMPTY_CHAIN

    def _set_live(self, live: Sequence[int]) -> None:
        """Set the live messages. Those before coverage must not have changed."""
        self.live = list(live)
        self.interrupted -= set(live)
        previous = 0
        for seq in self.live:
            if seq > self.coverage:
                chain = extend_chain(self._chain(previous), self.every[seq].item.fp)
                self.every[seq] = replace(self.every[seq], chain=chain)
                self.parents[seq] = previous
            previous = seq

    def _fall_back(self, cut: int) -> None:
        kept = tuple(o for o in self.log if o.last <= cut)
        if kept != self.log:
            self._next_generation(kept)
        self.chunks = tuple(c for c in self.chunks if c.last <= cut and c.after >= self.coverage)

    def _next_generation(self, log: tuple[Observation, ...]) -> None:
        self.past[self.generation] = self.log
        self.log, self.reflection = log, None
        self.generation, self.next_generation = self.next_generation, self.next_generation + 1

    def _observation(self, messages: Sequence[Message], text: str) -> Observation:
        first, last = messages[0].seq, messages[-1]
        id_ = self.next_id
        self.next_id += 1
        return Observation(
            id=id_,
            after=max((seq for seq in self.live if seq < first), default=0),
            last=last.seq,
            chain=last.chain,
            text=f"{text} {id_}",
            tokens=len(text),
            source_tokens=sum_framed_tokens(messages),
            at=2.5,
            task=f"task {id_}" if id_ % 2 else None,
            suggestion=None if id_ % 2 else "ask",
            title="title",
            model="observer",
        )


def full_thread() -> MemoryBuilder:
    """Return a thread with two messages of which no field is at its default."""
    thread = MemoryBuilder().say(full_item("one"), full_item("two"))
    thread.every = {seq: replace(m, look_ups=look_up(b"{}")) for seq, m in thread.every.items()}
    return thread


def small_things() -> dict[str, Any]:
    """Return every field of a Memory that is neither message nor observation, none at its
    default."""
    view = View(
        count=3, digest=bytes(range(16)), chain=b"\xff\x00" * 8, seq=2, end=2, reply=3, asked_at=0.0
    )
    return {
        "style": "window",
        "views": (
            view,
            replace(view, count=4, cells=(Cell("match", 0, 2, 1, 2), Cell("head", 2, 3, 3, 2))),
        ),
        "turns": 7,
        "render_date": 1_700_000_000.5,
        "timezone": "Europe/Lisbon",
        "undated_to": 3,
        "history_after": 2,
        "look_ups_after": 5,
        "look_ups_log_state": (2, 3),
        "turn_at": 1_700_000_001.125,
        "model": "openai/gpt-5",
        "failures": Failures(3, 1_700_000_600.75, True, "observe om_cut_off"),
        "due_at": 1_700_000_700.0,
        "needs_caller": True,
        "title": "Holidays",
        "title_pinned": True,
        "offers_tools": True,
        "overrides": b'{"observation":{"message_tokens":9000}}',
        "shown_log_state": (4, 5),
        "shown_pins_version": 2,
        "ledger": ThreadLedger(
            full=Account(3, 100, 50, 25, 9, 10**12),
            full_memory=Account(calls=1, cost=4_500),
            partial=Account(calls=2, unpriced=1),
            mark=PromptMark(1_700_000_000.5, 900, 300, (2.0, 5.0, 7.0, 1_700_000_000.5)),
            cached=7,
            repeated=9,
            shadow_parts=(("instructions", 12), ("tail", 3)),
        ),
    }


async def store_covered(store: Store, key: Key, count: int, covered: int) -> MemoryBuilder:
    """Store a thread of `count` messages, then notes of the first ones."""
    thread = MemoryBuilder(key).chat(count)
    before = await store.commit(Memory(key=key), thread.memory())
    await store.commit(before, thread.cover(covered).memory())
    return thread
