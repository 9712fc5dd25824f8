"""Worlds in which all threads are one resource's and share its log (`memory.scope: resource`), and
what must hold there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import orjson
from msgspec import structs

from om_proxy.memory.lifecycle import batches, log_sharing
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    RESOURCE_THREAD,
    Key,
    Memory,
    Message,
    Observation,
    resource_key,
)
from om_proxy.memory.notes import sections
from om_proxy.settings.identity.keyed_hashes import label_thread
from tests.simulation import oracle
from tests.simulation.callers import Client
from tests.simulation.changes import Covered, Place
from tests.simulation.oracle import named
from tests.simulation.plan import BRITTLE, KINDS, Plan
from tests.simulation.process import SECRET
from tests.simulation.promises import Violation, must
from tests.simulation.store import Thread, waiting_of
from tests.simulation.talk import Exchange, Talk
from tests.simulation.words import id_of, ids_in, ids_of
from tests.simulation.world import World

_OBSERVATIONS = re.compile(r"<observations>\n(.*?)\n</observations>", re.DOTALL)
_SECTION = re.compile(r'^<thread id="([0-9a-f]{16})">\n(.*?)\n</thread>$', re.DOTALL | re.MULTILINE)
_ELSEWHERE = re.compile(
    r'^<other-conversation id="([0-9a-f]{16})">\n(.*?)\n</other-conversation>$',
    re.DOTALL | re.MULTILINE,
)


SWITCHES = "identity: {scope_override: true}\n"


def plan_of(rng: Random) -> Plan:
    """As any world, but with two to four threads, a batch that holds some of them, and clients that
    sometimes change the scope."""
    plan = Plan.of(rng)
    kinds = tuple(rng.choice(KINDS) for _ in range(rng.choice((2, 2, 3, 4))))
    brittle = any(kind in BRITTLE for talk in kinds for kind in talk)
    batch = rng.choice((200, 1_000, 10_000))
    settings = plan.settings.replace("memory:\n", "memory:\n  scope: resource\n", 1)
    settings = settings.replace(
        "observation: {", f"observation: {{max_tokens_per_batch: {batch}, ", 1
    )
    if rng.random() < 0.3:
        settings += SWITCHES
    moves = {2: 12, 3: 8, 4: 6}[len(kinds)]
    recent = max(plan.recent, 40) if brittle else plan.recent
    return replace(
        plan,
        settings=settings,
        kinds=kinds,
        moves=moves,
        faults=plan.faults and not brittle,
        recent=recent,
    )


class SharedWorld(World):
    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(seed, plan or plan_of(Random(seed)))
        self.disk.watch_together = self._committed_together
        self.log: tuple[Observation, ...] = ()  # as of the last commit
        self.gone: dict[str, float] = {}  # when a message ceased to be live
        self.alone: set[Key] = set()  # threads whose clients want a log of their own, at the moment
        self.asked_alone: set[int] = set()  # exchanges that asked so
        self.stored_before: dict[Key, Memory] = {}  # threads between the commits of both rows
        # letters of threads whose log had to keep what was taken back, behind a note that says so
        self.revised = self.changes.revised
        self.changes.switches = SWITCHES in self.plan.settings

    def label(self, key: Key) -> str:
        return label_thread(SECRET, key)

    # ── requests ──

    def _scope(self, made: Exchange, client: Client, retry: bool) -> dict[str, Any]:
        scope = super()._scope(made, client, retry)
        key = client.talk.key
        if SWITCHES in self.plan.settings:
            if not self.calm and self.rng.random() < 0.1:
                self.alone ^= {key}
                self.told(
                    f"{client.talk.letter} wants {'its own' if key in self.alone else 'the shared'} log"
                )
            wanted = "thread" if key in self.alone else "resource"
            scope["headers"].append((b"x-om-scope", wanted.encode()))
        if key in self.alone:
            self.asked_alone.add(made.number)
        return scope

    # ── the store, at every commit ──

    def _committed(self, before: Memory, after: Memory, rows: Thread) -> None:
        """One row of the two; what holds between them is looked at when both are there."""
        try:
            if after.key.thread == RESOURCE_THREAD:
                self.told(f"shared log commit {after}")
                self.changes.note_log(after.key, before.log, after.log, self._find_covered)
                return
            talk = self.talks[after.key]
            self.told(f"{talk.letter} commit {after}")
            self._note_chunks(talk, before, after, rows)
            self._check_thread(talk, before, after, rows)
            if after.scope == "thread":
                self._check_changes_of(after.key, after, moves=before.scope != after.scope)
                self.changes.check_chunks(
                    before, after, after.key, after.log.entries, self._places()
                )
            else:
                self.stored_before[after.key] = before
        except Violation as exc:
            self.broke(exc)

    def _note_chunks(self, talk: Talk, before: Memory, after: Memory, rows: Thread) -> None:
        live = rows.live()
        if after.scope == "thread":
            oracle.note_changes(talk, before, after, live)
            return
        self.changes.note_chunks(
            before, after, lambda entry: oracle.find_covered(talk, entry.after, entry.last, live)
        )
        oracle.settle(talk, after, live)

    def _find_covered(self, entry: Observation) -> Covered:
        """What an entry of the shared log covers, of all threads."""
        found: dict[Place, str] = {}
        letters = {self.label(key): talk for key, talk in self.talks.items()}
        for part in entry.parts:
            talk = letters[part.label]
            rows = self.disk.threads.get(talk.key)
            live = rows.live() if rows else []
            found |= oracle.find_covered(talk, part.after, part.last, live)
        return found

    def _places(self) -> set[Place]:
        return {(talk.letter, seq) for talk in self.talks.values() for seq in talk.live}

    def _check_changes_of(self, key: Key, holder: Memory, *, moves: bool) -> None:
        uncertain = set().union(*(t.again | t.doubtful() for t in self.talks.values()))
        self.changes.check_log(key, holder.log.entries, self._places(), uncertain, moves=moves)

    def _check_thread(self, talk: Talk, before: Memory, after: Memory, rows: Thread) -> None:
        stored = rows.memory()
        must(
            structs.replace(after, recent=stored.recent) == stored,
            "one live record",
            "what is stored is not what was committed",
        )
        must(after.version > before.version, "one live record", before, after)
        must(not after.log.entries or after.scope == "thread", "the log is its resource's", after)
        here = {m.seq: id_of(m.item.raw) or "?" for m in rows.live()}
        gone = {seq: one for seq, one in talk.live.items() if seq not in here}
        oracle._check_messages(talk, here, gone)
        kept = [p.last for o in self.log for p in o.parts if p.label == self.label(talk.key)]
        kept += [o.last for o in before.log.entries]
        least = max((last for last in kept if last < min(gone, default=before.end + 1)), default=0)
        must(
            after.coverage >= least or talk.letter in self.revised,
            "coverage monotone on a branch",
            before,
            after,
            f"kept {least}",
        )
        for one in set(gone.values()) - set(here.values()):
            self.gone[one] = self.loop.time()
        for one in here.values():
            self.gone.pop(one, None)
        talk.live = here
        talk.ever |= set(here.values())
        if after.scope == "thread":
            self._note(talk, any(o.kind == "note" for o in after.log.entries))
            if talk.letter not in self.revised:
                oracle._check_ranges(after, rows.live(), self.changes)

    def _note(self, talk: Talk, noted: bool) -> None:
        """A reflection does not take along what it was made from when a thread changes its scope: a
        fork inside it is noted."""
        if noted and talk.letter not in self.revised:
            must(
                SWITCHES in self.plan.settings,
                "memory follows the branch",
                "everything is kept here, and yet it did not",
            )
            self.revised.add(talk.letter)
            self.told(f"{talk.letter} revised")

    def _committed_together(self, thread: Memory, shared_log: Memory) -> None:
        self.log = shared_log.log.entries
        began = shared_log.log.began
        moves = began is not None and began.why == "scope"
        try:
            if before := self.stored_before.pop(thread.key, None):
                self.changes.check_chunks(
                    before, thread, shared_log.key, shared_log.log.entries, self._places()
                )
            self._check_changes_of(shared_log.key, shared_log, moves=moves)
            ids = [o.id for o in shared_log.log.entries]
            must(
                len(ids) == len(set(ids)) and max(ids, default=0) < shared_log.next_id,
                "one live record",
                shared_log,
                ids,
            )
            oracle._check_reflection(shared_log)
            for key, rows in self.disk.threads.items():
                if key.thread != RESOURCE_THREAD and rows.head.scope == "resource":
                    self._check_ranges(rows.memory(), rows.live(), shared_log)
            sharing = {self.label(rows.head.key) for rows in self.disk.sharing(shared_log.key)}
            strangers = {p.label for o in shared_log.log.entries for p in o.parts} - sharing
            must(not strangers, "every entry is about a thread that shares the log", strangers)
        except Violation as exc:
            self.broke(exc)

    def _check_ranges(self, memory: Memory, live: Sequence[Message], shared_log: Memory) -> None:
        """The parts of the log that are this thread's, and its chunks, cover it from its beginning
        without a gap."""
        label, chains, end = (
            self.label(memory.key),
            {0: EMPTY_CHAIN, **{m.seq: m.chain for m in live}},
            0,
        )
        talk = self.talks[memory.key]
        self._note(
            talk,
            any(o.kind == "note" and o.parts[0].label == label for o in shared_log.log.entries),
        )
        revised = talk.letter in self.revised
        parts = [p for o in shared_log.log.entries for p in o.parts if p.label == label]
        begins = iter([p.after for p in parts[1:]])
        for entry in shared_log.log.entries:
            for part in [p for p in entry.parts if p.label == label]:
                # a note of a fork takes back what the entry before it tells of later messages
                reach = min(part.last, next(begins, memory.coverage))
                must(
                    part.after == end or (revised and part.after <= end),
                    "each message in exactly one range",
                    f"{entry} of {memory}: not from {end} on",
                )
                must(
                    chains.get(part.last) == part.chain or revised,
                    "no entry of an abandoned branch",
                    entry,
                    memory,
                )
                noted = set().union(
                    *(ids_in(s.text) for s in sections.split_entry(entry) if s.label == label)
                )
                about = {id_of(m.item.raw) or "?" for m in live if part.after < m.seq <= reach}
                excused = self.changes.excused()
                must(
                    noted <= about <= noted | excused
                    or (revised and about <= noted | ids_in(entry.text) | excused)
                    or entry.kind == "note",
                    "noted under its own name",
                    entry,
                    f"covers {named(about)}, notes {named(noted)}",
                )
                end = part.last
        must(
            memory.coverage
            == end
            == log_sharing.find_thread_coverage(shared_log.log.entries, label),
            "coverage is the reach of the parts",
            memory,
            end,
        )
        covered = sum(m.seq <= end for m in live)
        must(memory.covered_count == covered, "each message in exactly one range", memory, covered)
        must(
            [m.seq for m in live[covered:]] == [m.seq for m in memory.tail],
            "in the tail or in a range",
            memory,
        )
        for chunk in memory.chunks:
            must(
                chunk.after == end and chains.get(chunk.last) == chunk.chain,
                "no chunk stranded",
                chunk,
                memory,
            )
            messages = [m for m in live if chunk.after < m.seq <= chunk.last]
            oracle._check_notes(chunk, messages, self.changes)
            end = chunk.last

    # ── the prompt, at every request ──

    def _log_of(self, made: Exchange) -> Key:
        key = made.client.talk.key
        return key if made.number in self.asked_alone else resource_key(key)

    def _read(self, made: Exchange, body: bytes) -> tuple[set[str], list[str]]:
        own, letter = self.label(made.client.talk.key), made.client.talk.letter
        if made.number in self.asked_alone:
            self._forgiven(made, body)
            observed, raw = super()._read(made, body)
            self._disclaim(made, oracle.find_block(body))
            must(
                {one[0] for one in {*observed, *raw}} <= {letter},
                "a log of its own is its own",
                named(observed),
                raw,
            )
            return observed, raw
        observed, raw = set(), []
        self._forgiven(made, body)
        for said in orjson.loads(body)["messages"]:
            block, rest = oracle.split_message(said)
            if block:
                observed |= self._read_block(made, own, block)
            raw += ids_of(rest)
        strange = [one for one in raw if one[0] != letter]
        must(not strange, "no other thread's turns as its own history", strange)
        return observed, raw

    def _forgiven(self, made: Exchange, body: bytes) -> None:
        """What its notes say of an abandoned branch may be told behind the note that says so."""
        talk = made.client.talk
        self._note(talk, oracle.NOTE_OF_FORK.encode() in body and SWITCHES in self.plan.settings)
        if talk.letter in self.revised:
            talk.unsure |= talk.ever

    def _disclaim(self, made: Exchange, notes: str) -> None:
        """`notes`: what its block says of this thread."""
        talk = made.client.talk
        if talk.letter in self.revised:
            made.disclaimed |= oracle.find_disclaimed(notes) & talk.withdrawn

    def _read_block(self, made: Exchange, own: str, text: str) -> set[str]:
        letters = {self.label(key): talk.letter for key, talk in self.talks.items()}
        log = _OBSERVATIONS.search(text)
        noted = _SECTION.findall(log[1] if log else "")
        self._disclaim(made, "\n".join(said for label, said in noted if label == own))
        for label, said in [*noted, *_ELSEWHERE.findall(text)]:
            must(
                {one[0] for one in ids_in(said)} <= {letters.get(label)},
                "under its own name",
                label,
                named(ids_in(said)),
            )
        must(own not in dict(_ELSEWHERE.findall(text)), "nobody is told of itself", own)
        outside = ids_in(_ELSEWHERE.sub("", text.replace(log[0], "") if log else text))
        must(not outside, "nothing outside of the sections", named(outside))
        everything = set().union(*(ids_in(said) for _, said in noted))
        must(
            ids_in(log[1] if log else "") == everything,
            "every note under a name",
            named(everything),
        )
        abandoned = {
            one
            for one in everything
            if self.gone.get(one, made.started) < made.started and one[0] not in self.revised
        }
        must(not abandoned, "no entry of an abandoned branch in any prompt", named(abandoned))
        return set().union(*(ids_in(said) for label, said in noted if label == own))

    # ── in the end ──

    async def _revive(self) -> None:
        await super()._revive()
        store = self.processes[0].store
        await store.set_due(resource_key(next(iter(self.talks))), self.clock())

    def _must_be_done(self, memory: Memory, limits: Limits) -> None:
        if memory.scope == "thread":
            super()._must_be_done(memory, limits)
            return
        shared_log = resource_key(memory.key)
        # after a condensing that failed, a silent resource is next looked at with its next turn
        limits = replace(limits, share_after_idle_s=None)
        waiting = [waiting_of(t.memory()) for t in self.disk.sharing(shared_log)]
        left = batches.decide_for_resource(
            waiting, limits, self.disk.memory(shared_log).log.tokens, 10_000, self.clock()
        )
        must(left is None, "no work stranded", left, waiting)
