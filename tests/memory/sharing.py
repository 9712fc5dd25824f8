"""Threads of one resource that share a log, led by the pure functions alone, with a store in plain
lists.

Every message is a word of its own (`A17`), notes name the words they are about: so what is covered
can be read off what is noted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, log_sharing, transitions
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    EMPTY_MARK,
    RECENT_MARKS,
    RESOURCE_THREAD,
    Generation,
    Key,
    Memory,
    Message,
    Observation,
    Reflection,
    extend_chain,
    resource_key,
    sum_framed_tokens,
)
from om_proxy.memory.notes import sections
from om_proxy.memory.notes.observations import parse_reflection
from tests.memory.building import item

RESOURCE_KEY = Key("tenant", "resource", RESOURCE_THREAD)
NOW = 1_700_000_000.0
LABELS = {name: name.lower() * 2 + "0" * 14 for name in "ABCDEF"}  # labels are hexadecimal
_WORD = re.compile(r"\b[A-F]\d+\b")


def words(text: str) -> set[str]:
    return set(_WORD.findall(text))


def tokens(text: str) -> int:
    return len(text.split())


def entry(
    name: str, after: int, last: int, text: str = "* 🔴 noted", **more: object
) -> Observation:
    """A log entry as a thread's own, before it enters a shared log; its chain says what it
    covers."""
    chain = f"{name}{last}".encode().ljust(16)
    made = Observation(
        id=0, after=after, last=last, chain=chain, text=text, tokens=9, source_tokens=99, at=1.0
    )
    return replace(made, **more)


@dataclass
class Voice:
    """One thread, as it is stored."""

    name: str
    label: str  # in the log
    memory: Memory
    rows: dict[int, Message] = field(default_factory=dict)
    live: list[int] = field(default_factory=list)
    # it has left, and what stands only in a reflection over several threads stayed there
    blurred: bool = False

    @property
    def messages(self) -> list[Message]:
        return [self.rows[seq] for seq in self.live]

    @property
    def chains(self) -> dict[int, bytes]:
        return {m.seq: m.chain for m in self.messages}

    def said(self, after: int, last: int) -> list[Message]:
        return [m for m in self.messages if after < m.seq <= last]


class Resource:
    """Some threads and their shared log. `keep`: older generations of the log that are kept; None:
    all.
    `key`: the shared log's."""

    def __init__(
        self,
        names: str,
        keep: int | None = None,
        key: Key = RESOURCE_KEY,
        label: Callable[[Key], str] = lambda key: LABELS[key.thread],
    ) -> None:
        self.shared_log = Memory(key=key)
        self.label = label
        self.past: list[Generation] = []  # newest first
        self.voices = {name: self._new(name) for name in names}
        self.keep = keep
        self.numbers = count(1)
        self.edited_words: set[str] = set()  # of messages whose notes a person has changed

    def _new(self, name: str) -> Voice:
        key = self.shared_log.key._replace(thread=name)
        return Voice(name, self.label(key), Memory(key=key, scope="resource"))

    @property
    def log(self) -> tuple[Observation, ...]:
        return self.shared_log.log.entries

    def load_joined(self, name: str) -> Memory:
        voice = self.voices[name]
        return log_sharing.attach_log(voice.memory, self.shared_log, voice.label)

    def shares(self, name: str) -> bool:
        return self.voices[name].memory.scope == "resource"

    def commit(self, name: str, after: Memory) -> None:
        thread, shared_log = log_sharing.detach_log(after)
        self.voices[name].memory = thread
        self.store_log(shared_log)

    def store_log(self, shared_log: Memory) -> None:
        if (
            shared_log.log.generation != self.shared_log.log.generation
            and self.shared_log.log.entries
        ):
            self.past.insert(
                0, Generation(self.shared_log.log.generation, self.shared_log.log.entries)
            )
            del self.past[len(self.past) if self.keep is None else self.keep :]
        self.shared_log = shared_log

    # ── steps ──

    def say(self, name: str, times: int = 1) -> None:
        """Say messages of ten tokens, the user and the assistant in turn."""
        voice = self.voices[name]
        for _ in range(times):
            memory = voice.memory
            number = next(self.numbers)
            one = item(("user", "assistant")[len(voice.live) % 2], f"{name}{number}")
            said = Message(
                memory.next_seq, one, extend_chain(memory.chain, one.fp), 6, float(number)
            )
            voice.rows[said.seq] = said
            voice.live.append(said.seq)
            voice.memory = replace(
                memory, tail=(*memory.tail, said), next_seq=said.seq + 1, turn_at=NOW + said.at
            )

    def observe(self, name: str, number: int, task: str | None = None) -> None:
        memory = self.load_joined(name)
        messages = [m for m in memory.tail if m.seq > memory.chunked_to][:number]
        if messages:
            made = self.write_chunk(memory, messages, task)
            self.commit(name, transitions.add_chunk(memory, made))

    def write_chunk(
        self, memory: Memory, messages: list[Message], task: str | None = None
    ) -> Observation:
        return self.chunk(memory, messages, task)

    def limit_log(self, before: Memory, after: Memory) -> Memory:
        """Return `after`, with new entries or a reflection, as a limited log keeps it."""
        return after

    @staticmethod
    def chunk(memory: Memory, messages: list[Message], task: str | None = None) -> Observation:
        last = messages[-1]
        text = f"* 🔴 {' '.join(sorted(words(' '.join(m.item.raw.decode() for m in messages))))}"
        made = Observation(
            id=0,
            after=memory.chunked_to,
            last=last.seq,
            chain=last.chain,
            text=text,
            tokens=4,
            source_tokens=9,
            at=NOW,
        )
        return replace(made, source_tokens=sum_framed_tokens(messages), task=task)

    def activate(self, name: str, number: int = 1) -> None:
        memory = self.load_joined(name)
        ids = [c.id for c in memory.chunks[:number]]
        activated = transitions.activate_chunks(memory, ids, NOW)
        self.commit(name, self.limit_log(memory, activated))

    def cover(self, name: str, number: int) -> None:
        """Let this many messages be said, observed and in the log."""
        self.say(name, number)
        self.observe(name, number)
        self.activate(name)

    def reflect(self, number: int | None = None, start: int = 0) -> None:
        """Keep a reflection of `number` entries from the index `start` on beside the log. It says
        all they say."""
        sources = self.shared_log.log.entries[start:][:number]
        if sources:
            self.store_log(transitions.keep_reflection(self.shared_log, self.reflection(sources)))

    def reflection(self, sources: tuple[Observation, ...]) -> Reflection:
        labels = {part.label for o in sources for part in o.parts}
        given = sections.render_sections(
            section for o in sources for section in sections.split_entry(o)
        )
        said = sections.mark_tags(f"<observations>\n{given}\n</observations>", labels)
        text = sections.restore_tags(
            parse_reflection(said, source_tokens=9_999, tokens=tokens).text, labels
        )
        ids = tuple(o.id for o in sources)
        return Reflection(
            generation=self.shared_log.log.generation,
            sources=ids,
            text=text,
            tokens=3,
            source_tokens=9,
            at=NOW,
        )

    def swap(self, name: str) -> None:
        memory = self.load_joined(name)
        self.commit(name, self.limit_log(memory, transitions.swap_reflection(memory, NOW)))

    def fork(self, name: str, cut: int) -> None:
        """Let the client go back to the message `cut` and go on from there, as
        engine/turns/engine.py does."""
        voice, memory = self.voices[name], self.load_joined(name)
        if cut < memory.coverage:
            log, note_seq = branch.find_rollback_target(memory, cut, self.past, voice.chains)
            if note_seq is not None:
                at = next(
                    (m.mark for m in reversed(voice.messages) if m.seq <= note_seq), EMPTY_MARK
                )
                log = branch.add_rollback_note(
                    memory, log, at, datetime.fromtimestamp(NOW, UTC), tokens
                )
            memory = self.roll_back(voice, memory, cut, log)
        chunks = tuple(c for c in memory.chunks if c.last <= cut)
        self.commit(
            name, replace(memory, tail=tuple(m for m in memory.tail if m.seq <= cut), chunks=chunks)
        )
        voice.live = [seq for seq in voice.live if seq <= cut]

    @staticmethod
    def roll_back(voice: Voice, memory: Memory, cut: int, log: tuple[Observation, ...]) -> Memory:
        reach = branch.find_coverage(memory, log)
        covered, tail = voice.said(0, reach), voice.said(reach, 10**9)
        marks = [m.mark for m in covered]
        return branch.roll_back(
            memory, cut, log, marks, tail, (len(covered), sum_framed_tokens(covered)), NOW
        )

    def leave(self, name: str) -> None:
        """Give the thread a log of its own."""
        voice, memory = self.voices[name], self.load_joined(name)
        own, shared_log = log_sharing.leave_shared_log(memory, self.past, NOW)
        thread, _ = log_sharing.detach_log(memory)
        alone = log_sharing.finish_leaving(thread, own, NOW)
        voice.memory = self.roll_back(voice, alone, memory.end, own)
        self.store_log(shared_log)
        voice.blurred = voice.blurred or any(
            p.label == voice.label for o in shared_log.log.entries for p in o.parts
        )

    def join(self, name: str) -> None:
        voice = self.voices[name]
        joined = log_sharing.join_shared_log(voice.memory, self.shared_log, voice.label, NOW)
        self.commit(name, joined)

    def forget(self, name: str) -> None:
        """Forget the thread as a store does. It begins anew, under its old name."""
        gone, before = self.voices[name].label, self.shared_log
        self.shared_log = branch.remove_thread(before, self.past, gone, NOW)
        older = [Generation(before.log.generation, before.log.entries), *self.past]
        cleared = [
            (number, tuple(o for o in log if not branch.mentions_thread(o, gone)))
            for number, log in older
        ]
        self.past = [Generation(number, log) for number, log in cleared if log]
        for other, voice in self.voices.items():
            if (
                other != name
                and self.shares(other)
                and branch.covers_less(before.log.entries, self.log, voice.label)
            ):
                reach = log_sharing.find_thread_coverage(self.log, voice.label)
                covered, tail = voice.said(0, reach), voice.said(reach, 10**9)
                marks, counted = (
                    [m.mark for m in covered][-RECENT_MARKS:],
                    (len(covered), sum_framed_tokens(covered)),
                )
                voice.memory = branch.uncover_thread(
                    voice.memory, self.shared_log, voice.label, marks, tail, counted
                )
        self.voices[name] = self._new(name)

    # ── what must hold ──

    def check(self) -> None:
        assert len({o.id for o in self.log}) == len(self.log)
        assert all(o.id < self.shared_log.next_id for o in self.log)
        for name, voice in self.voices.items():
            memory = self.load_joined(name) if self.shares(name) else voice.memory
            self._check_ranges(voice, memory)
            self._check_notes(voice, memory)
            if self.shares(name):
                assert log_sharing.detach_log(memory) == (
                    voice.memory,
                    replace(self.shared_log, key=resource_key(voice.memory.key)),
                )

    def _check_ranges(self, voice: Voice, memory: Memory) -> None:
        """The thread's coverage is the reach of its parts, which follow one another from the
        beginning. The chunks go on from there, the rest is raw."""
        end, chain = 0, EMPTY_CHAIN
        for after, last, at, goes_back in self._ranges(voice, memory):
            assert after <= end if goes_back else after == end, (voice.name, self.log)
            end, chain = last, at
        assert memory.coverage == end == branch.find_coverage(memory, memory.log.entries)
        assert voice.chains.get(end, EMPTY_CHAIN) == chain, (
            f"{voice.name}: the log is about another branch"
        )
        covered = voice.said(0, end)
        assert (memory.covered_count, memory.covered_tokens) == (
            len(covered),
            sum_framed_tokens(covered),
        )
        assert memory.recent == tuple(m.mark for m in covered)[-RECENT_MARKS:]
        assert list(memory.tail) == voice.said(end, 10**9)
        for chunk in memory.chunks:
            assert chunk.after == end, f"{voice.name}: {chunk} begins elsewhere than at {end}"
            assert voice.chains[chunk.last] == chunk.chain
            end = chunk.last

    def _ranges(self, voice: Voice, memory: Memory) -> Iterator[tuple[int, int, bytes, bool]]:
        for o in memory.log.entries:
            if not memory.shared_log_ref:
                yield o.after, o.last, o.chain, self.goes_back(o)
            for p in o.parts if memory.shared_log_ref else ():
                if p.label == voice.label and log_sharing.moves_coverage(o, p):
                    yield p.after, p.last, p.chain, self.goes_back(o)

    def _check_notes(self, voice: Voice, memory: Memory) -> None:
        """The notes name every covered message of the thread, and nothing of an abandoned
        branch."""
        noted = self.list_noted_words(
            memory.log.entries, {voice.label, None} if memory.shared_log_ref else {None}, voice.name
        )
        covered = words(" ".join(m.item.raw.decode() for m in voice.said(0, memory.coverage)))
        lost = covered - noted - self.edited_words
        assert not lost, f"{voice.name}: covered and noted nowhere: {lost}"
        forgiven = any(map(self.goes_back, memory.log.entries)) or voice.blurred
        assert forgiven or noted <= covered, (
            f"{voice.name}: of an abandoned branch: {noted - covered}"
        )

    @staticmethod
    def goes_back(o: Observation) -> bool:
        """Return whether the entry is a rollback note, or a reflection of one."""
        return o.kind == "note" or (o.kind == "reflection" and "taken back" in o.text)

    @staticmethod
    def list_noted_words(
        log: tuple[Observation, ...], labels: Collection[str | None], name: str
    ) -> set[str]:
        said = [s.text for o in log for s in sections.split_entry(o) if s.label in labels]
        return {word for word in words(" ".join(said)) if word[0] == name}

    def others(self, name: str) -> dict[str, tuple[int, set[str]]]:
        """Return what the log covers and notes of each other thread."""
        return {
            other: (
                log_sharing.find_thread_coverage(self.log, v.label),
                self.list_noted_words(self.log, {v.label, None}, other),
            )
            for other, v in self.voices.items()
            if other != name and self.shares(other)
        }
