"""Threads of one resource that share a log, led by the pure functions alone, with a store in plain lists.

Every message is a word of its own (`A17`), notes name the words they are about: so what is covered can be read off what is noted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

from msgspec.structs import replace

from om_proxy.memory import branch, forgetting, lifecycle, sections, shared
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    EMPTY_MARK,
    HUB,
    RECENT_MARKS,
    Key,
    Memory,
    Message,
    Observation,
    Reflection,
    chained,
    hub_of,
    weight,
)
from om_proxy.memory.observations import parse_reflection
from tests.memory.building import item

HUB_KEY = Key("tenant", "resource", HUB)
NOW = 1_700_000_000.0
LABELS = {name: name.lower() * 2 + "0" * 14 for name in "ABCDEF"}  # labels are hexadecimal
_WORD = re.compile(r"\b[A-F]\d+\b")


def words(text: str) -> set[str]:
    return set(_WORD.findall(text))


def tokens(text: str) -> int:
    return len(text.split())


def entry(name: str, after: int, last: int, text: str = "* 🔴 noted", **more: object) -> Observation:
    """A log entry as a thread's own, before it enters a shared log; its chain says what it covers."""
    chain = f"{name}{last}".encode().ljust(16)
    made = Observation(id=0, after=after, last=last, chain=chain, text=text, tokens=9, source_tokens=99, at=1.0)
    return replace(made, **more)


@dataclass
class Voice:
    """One thread, as it is stored."""

    name: str
    label: str  # in the log
    memory: Memory
    rows: dict[int, Message] = field(default_factory=dict)
    live: list[int] = field(default_factory=list)
    blurred: bool = False  # it has left, and what stands only in a reflection over several threads stayed there

    @property
    def messages(self) -> list[Message]:
        return [self.rows[seq] for seq in self.live]

    @property
    def chains(self) -> dict[int, bytes]:
        return {m.seq: m.chain for m in self.messages}

    def said(self, after: int, last: int) -> list[Message]:
        return [m for m in self.messages if after < m.seq <= last]


class Resource:
    """Some threads and their hub. `keep`: older generations of the log that are kept; None: all. `key`: the hub's."""

    def __init__(
        self,
        names: str,
        keep: int | None = None,
        key: Key = HUB_KEY,
        label: Callable[[Key], str] = lambda key: LABELS[key.thread],
    ) -> None:
        self.hub = Memory(key=key)
        self.label = label
        self.past: list[tuple[int, tuple[Observation, ...]]] = []  # newest first
        self.voices = {name: self._new(name) for name in names}
        self.keep = keep
        self.numbers = count(1)

    def _new(self, name: str) -> Voice:
        key = self.hub.key._replace(thread=name)
        return Voice(name, self.label(key), Memory(key=key, scope="resource"))

    @property
    def log(self) -> tuple[Observation, ...]:
        return self.hub.log

    def joint(self, name: str) -> Memory:
        voice = self.voices[name]
        return shared.together(voice.memory, self.hub, voice.label)

    def shares(self, name: str) -> bool:
        return self.voices[name].memory.scope == "resource"

    def commit(self, name: str, after: Memory) -> None:
        thread, hub = shared.apart(after)
        self.voices[name].memory = thread
        self.written(hub)

    def written(self, hub: Memory) -> None:
        if hub.generation != self.hub.generation and self.hub.log:
            self.past.insert(0, (self.hub.generation, self.hub.log))
            del self.past[len(self.past) if self.keep is None else self.keep :]
        self.hub = hub

    # ── steps ──

    def say(self, name: str, times: int = 1) -> None:
        """Messages of ten tokens, the user and the assistant in turn."""
        voice = self.voices[name]
        for _ in range(times):
            memory = voice.memory
            number = next(self.numbers)
            one = item(("user", "assistant")[len(voice.live) % 2], f"{name}{number}")
            said = Message(memory.next_seq, one, chained(memory.chain, one.fp), 6, float(number))
            voice.rows[said.seq] = said
            voice.live.append(said.seq)
            voice.memory = replace(memory, tail=(*memory.tail, said), next_seq=said.seq + 1, turn_at=NOW + said.at)

    def observe(self, name: str, number: int, task: str | None = None) -> None:
        memory = self.joint(name)
        messages = [m for m in memory.tail if m.seq > memory.chunked_to][:number]
        if messages:
            self.commit(name, lifecycle.observed(memory, self.chunk(memory, messages, task)))

    @staticmethod
    def chunk(memory: Memory, messages: list[Message], task: str | None = None) -> Observation:
        last = messages[-1]
        text = f"* 🔴 {' '.join(sorted(words(' '.join(m.item.raw.decode() for m in messages))))}"
        made = Observation(
            id=0, after=memory.chunked_to, last=last.seq, chain=last.chain, text=text, tokens=4, source_tokens=9, at=NOW
        )
        return replace(made, source_tokens=weight(messages), task=task)

    def activate(self, name: str, number: int = 1) -> None:
        memory = self.joint(name)
        self.commit(name, lifecycle.activated(memory, [c.id for c in memory.chunks[:number]], NOW))

    def cover(self, name: str, number: int) -> None:
        """So many messages said, observed and in the log."""
        self.say(name, number)
        self.observe(name, number)
        self.activate(name)

    def reflect(self, number: int | None = None, start: int = 0) -> None:
        """A reflection of `number` entries from the index `start` on, which says all they say, kept beside the log."""
        sources = self.hub.log[start:][:number]
        if sources:
            self.written(lifecycle.reflected(self.hub, self.reflection(sources)))

    def reflection(self, sources: tuple[Observation, ...]) -> Reflection:
        labels = {part.label for o in sources for part in o.parts}
        given = sections.shown(section for o in sources for section in sections.sections(o))
        said = sections.marked(f"<observations>\n{given}\n</observations>", labels)
        text = sections.stored(parse_reflection(said, source_tokens=9_999, tokens=tokens).text, labels)
        ids = tuple(o.id for o in sources)
        return Reflection(generation=self.hub.generation, sources=ids, text=text, tokens=3, source_tokens=9, at=NOW)

    def swap(self, name: str) -> None:
        self.commit(name, lifecycle.swapped(self.joint(name), NOW))

    def fork(self, name: str, cut: int) -> None:
        """The client goes back to the message `cut` and goes on from there, as engine.py has it."""
        voice, memory = self.voices[name], self.joint(name)
        if cut < memory.coverage:
            log, forgotten = branch.fallback(memory, cut, self.past, voice.chains)
            if forgotten:
                at = next((m.mark for m in reversed(voice.messages) if m.seq <= cut), EMPTY_MARK)
                log = branch.revised(memory, log, at, datetime.fromtimestamp(NOW, UTC), tokens)
            memory = self.rolled_back(voice, memory, cut, log)
        chunks = tuple(c for c in memory.chunks if c.last <= cut)
        self.commit(name, replace(memory, tail=tuple(m for m in memory.tail if m.seq <= cut), chunks=chunks))
        voice.live = [seq for seq in voice.live if seq <= cut]

    @staticmethod
    def rolled_back(voice: Voice, memory: Memory, cut: int, log: tuple[Observation, ...]) -> Memory:
        reach = branch.reach(log, voice.label if memory.hub else None)
        covered, tail = voice.said(0, reach), voice.said(reach, 10**9)
        marks = [m.mark for m in covered]
        return branch.rolled_back(memory, cut, log, marks, tail, (len(covered), weight(covered)), NOW)

    def leave(self, name: str) -> None:
        """Its log is its own from now on."""
        voice, memory = self.voices[name], self.joint(name)
        own, hub = shared.parted(memory, self.past)
        thread, _ = shared.apart(memory)
        alone = shared.alone(thread, own)
        voice.memory = self.rolled_back(voice, alone, memory.end, own)
        self.written(hub)
        voice.blurred = voice.blurred or any(p.label == voice.label for o in hub.log for p in o.parts)

    def join(self, name: str) -> None:
        voice = self.voices[name]
        self.commit(name, shared.joined(voice.memory, self.hub, voice.label))

    def forget(self, name: str) -> None:
        """As a store does it; the thread begins anew, under its old name."""
        gone, before = self.voices[name].label, self.hub
        self.hub = forgetting.without(before, self.past, gone)
        older = [(before.generation, before.log), *self.past]
        cleared = [(number, tuple(o for o in log if not forgetting.mentions(o, gone))) for number, log in older]
        self.past = [(number, log) for number, log in cleared if log]
        for other, voice in self.voices.items():
            if other != name and self.shares(other) and forgetting.fallen(before.log, self.log, voice.label):
                reach = shared.reach(self.log, voice.label)
                covered, tail = voice.said(0, reach), voice.said(reach, 10**9)
                marks, counted = [m.mark for m in covered][-RECENT_MARKS:], (len(covered), weight(covered))
                voice.memory = forgetting.uncovered(voice.memory, self.hub, voice.label, marks, tail, counted)
        self.voices[name] = self._new(name)

    # ── what must hold ──

    def check(self) -> None:
        assert len({o.id for o in self.log}) == len(self.log)
        assert all(o.id < self.hub.next_id for o in self.log)
        for name, voice in self.voices.items():
            memory = self.joint(name) if self.shares(name) else voice.memory
            self._check_ranges(voice, memory)
            self._check_notes(voice, memory)
            if self.shares(name):
                assert shared.apart(memory) == (voice.memory, replace(self.hub, key=hub_of(voice.memory.key)))

    def _check_ranges(self, voice: Voice, memory: Memory) -> None:
        """Coverage is the reach of its parts, which follow one another from the beginning; the chunks go on from there, the rest is raw."""
        end, chain = 0, EMPTY_CHAIN
        for after, last, at, is_note in self._ranges(voice, memory):
            assert after <= end if is_note or not last else after == end, (voice.name, self.log)
            end, chain = last, at
        assert memory.coverage == end == branch.reach(memory.log, voice.label if memory.hub else None)
        assert voice.chains.get(end, EMPTY_CHAIN) == chain, f"{voice.name}: the log is about another branch"
        covered = voice.said(0, end)
        assert (memory.covered_count, memory.covered_tokens) == (len(covered), weight(covered))
        assert memory.recent == tuple(m.mark for m in covered)[-RECENT_MARKS:]
        assert list(memory.tail) == voice.said(end, 10**9)
        for chunk in memory.chunks:
            assert chunk.after == end, f"{voice.name}: {chunk} begins elsewhere than at {end}"
            assert voice.chains[chunk.last] == chunk.chain
            end = chunk.last

    @staticmethod
    def _ranges(voice: Voice, memory: Memory) -> Iterator[tuple[int, int, bytes, bool]]:
        for o in memory.log:
            if not memory.hub:
                yield o.after, o.last, o.chain, o.kind == "note"
            for p in o.parts if memory.hub else ():
                if p.label == voice.label:
                    yield p.after, p.last, p.chain, o.kind == "note"

    def _check_notes(self, voice: Voice, memory: Memory) -> None:
        """What is covered is noted, under the thread's own name, and nothing else of it is: no entry of an abandoned branch."""
        noted = self.noted(memory.log, {voice.label, None} if memory.hub else {None}, voice.name)
        covered = words(" ".join(m.item.raw.decode() for m in voice.said(0, memory.coverage)))
        assert covered <= noted, f"{voice.name}: covered and noted nowhere: {covered - noted}"
        forgiven = any(o.kind == "note" or self._swallowed_note(o) for o in memory.log) or voice.blurred
        assert forgiven or noted == covered, f"{voice.name}: of an abandoned branch: {noted - covered}"

    def _swallowed_note(self, o: Observation) -> bool:
        return o.kind == "reflection" and "taken back" in o.text

    @staticmethod
    def noted(log: tuple[Observation, ...], labels: Collection[str | None], name: str) -> set[str]:
        said = [s.text for o in log for s in sections.sections(o) if s.label in labels]
        return {word for word in words(" ".join(said)) if word[0] == name}

    def others(self, name: str) -> dict[str, tuple[int, set[str]]]:
        """Of each other thread, what the log covers and notes."""
        return {
            other: (shared.reach(self.log, v.label), self.noted(self.log, {v.label, None}, other))
            for other, v in self.voices.items()
            if other != name and self.shares(other)
        }
