"""Judge what clients, model servers and the store saw of conversations: what was lost, doubled or
stale. It is pure: a `History` of plain values goes in, `Findings` come out.

Every text that is said bears a *mark*, a word that stands nowhere else: a client's message, a reply,
a text that must not outlive its forgetting. A request may have been

- *acknowledged*: its client saw the end of the reply. Message and reply must be stored once.
- *unknown*: its connection broke, or it got an error after it may have been stored. Its message and
  its replies may be stored, once. One that *has waited* in a process that was not killed must be.
- *refused*: it got an error before anything of it could be stored. Nothing of it may be.

Times are those of one clock. What overlaps in time has no order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

Outcome = Literal["acknowledged", "unknown", "refused"]

# how long work may be due before somebody holds its lease: one lease, and the looks around it
MAX_STRANDED_S = 130.0
# of the store's clock as a process knows it
CLOCK_TOLERANCE_S = 5.0


class Turn(NamedTuple):
    """One request of a client, and what became of it."""

    thread: str
    said: str  # the mark of its newest message
    began_at: float
    ended_at: float
    outcome: Outcome
    reply: str = ""  # the mark of the reply that its client saw the end of
    has_memory: bool = True  # its receipt does not say that memory could not be read
    takes_back: tuple[str, ...] = ()  # marks that its client left out from here on: a fork
    shows: tuple[str, ...] = ()  # marks of the messages before, where its client sends its history
    # Unknown, but its client saw the end of the reply and will not send the message again. The
    # process that answered lived until nothing waited in it: the turn is stored, wherever.
    has_waited: bool = False
    # its client saw the head of the answer: without it nobody knows whether memory could be read
    has_receipt: bool = True


class Prompt(NamedTuple):
    """What a model server was asked, for the request that said this."""

    said: str
    marks: tuple[str, ...]  # in the messages, in their order
    noted: frozenset[str] = frozenset()  # that its notes were made from
    reply: str = ""


class Range(NamedTuple):
    """What an entry of a log, or a chunk, covers."""

    after: int
    last: int
    chain: bytes


class StoredMessage(NamedTuple):
    """A live message."""

    seq: int
    mark: str
    chain: bytes
    linked_chain: bytes  # the chain of the message before it with its own fingerprint, made anew
    at: float = 0.0  # when it was said, by the store's clock


class StoredThread(NamedTuple):
    """A thread as it stands at the end."""

    thread: str
    messages: tuple[StoredMessage, ...]
    ranges: tuple[Range, ...] = ()  # of entries, then of chunks
    coverage: int = 0
    tail: tuple[int, ...] = ()  # seqs
    row_count: int = 1
    due_at: float | None = None
    lacks_due_time: bool = False  # its messages are worth a call of the observer, and it is not due
    leased_until: float = 0.0


class Reading(NamedTuple):
    """A memory as somebody read it meanwhile."""

    thread: str
    began_at: float
    ended_at: float
    row_id: int
    version: int
    generation: int
    marks: frozenset[str] = frozenset()


class Forgetting(NamedTuple):
    """A thread that was forgotten, and which marks went with it."""

    marks: frozenset[str]
    ended_at: float


class Lease(NamedTuple):
    """A lease as its row said: from when, to what end, and when it was given back or written over."""

    key: str
    holder: str
    began_at: float
    until: float
    ended_at: float | None = None  # given back; None: never

    @property
    def holds_until(self) -> float:
        return self.until if self.ended_at is None else min(self.until, self.ended_at)


class Outage(NamedTuple):
    """A time in which some process could not reach the store, or had not yet stored what waited for
    it. Turns that ended in it are stored by its end."""

    began_at: float
    ended_at: float


class Restore(NamedTuple):
    """The store was taken back to a copy of it. No request was under way at either time."""

    copied_at: float
    restored_at: float

    def undoes(self, began_at: float) -> bool:
        """Return whether the copy lacks what began at this time."""
        return self.copied_at < began_at < self.restored_at


@dataclass(frozen=True)
class History:
    """All that was seen. `began_at`, `at`: when the run began, and when the threads were read at the
    end, both by the store's clock."""

    turns: Sequence[Turn] = ()
    prompts: Sequence[Prompt] = ()
    threads: Sequence[StoredThread] = ()
    readings: Sequence[Reading] = ()
    forgettings: Sequence[Forgetting] = ()
    leases: Sequence[Lease] = ()
    outages: Sequence[Outage] = ()
    restores: Sequence[Restore] = ()
    deadlocks: int = 0  # that the server has ended
    began_at: float = 0.0
    at: float = 0.0
    max_stranded_s: float = MAX_STRANDED_S


@dataclass
class Findings:
    """What is wrong. All lists are empty if every promise was kept."""

    lost: list[str] = field(default_factory=list)  # acknowledged, and not in the transcript
    doubled: list[str] = field(default_factory=list)  # in the transcript more than once
    foreign: list[str] = field(default_factory=list)  # there, though refused, or never said
    disordered: list[str] = field(default_factory=list)  # not in the order of real time
    stale: list[str] = field(default_factory=list)  # read without a commit before it
    taken_back: list[str] = field(default_factory=list)  # of an old branch, and shown or live
    broken: list[str] = field(default_factory=list)  # ranges, chains, rows
    shrunk: list[str] = field(default_factory=list)  # a version or generation that fell
    resurrected: list[str] = field(default_factory=list)  # read after it was forgotten
    owned_twice: list[str] = field(default_factory=list)  # a lease with two holders at once
    stranded: list[str] = field(default_factory=list)  # due, and nobody's
    undone: list[str] = field(default_factory=list)  # not in the restored store, and told or live
    deadlocked: list[str] = field(default_factory=list)  # transactions that waited for each other
    misdated: list[str] = field(default_factory=list)  # dated before or after the run

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: {'; '.join(found[:5])}{' …' if len(found) > 5 else ''}"
            for name, found in vars(self).items()
            if found
        )


def check(history: History) -> Findings:
    """Return all that is wrong with a history."""
    found = Findings()
    _check_undone(found, history)
    if history.deadlocks:
        found.deadlocked.append(f"{history.deadlocks} times")
    history = _leave_undone_open(history)
    turns: dict[str, list[Turn]] = defaultdict(list)
    for turn in history.turns:
        turns[turn.thread].append(_end_with_outage(turn, history.outages))
    replies = defaultdict(set)
    for prompt in history.prompts:
        if prompt.reply:
            replies[prompt.said].add(prompt.reply)
    threads = {stored.thread: stored for stored in history.threads}
    forgotten = frozenset().union(*(forgetting.marks for forgetting in history.forgettings))
    kept = {}
    for thread in turns.keys() | threads.keys():
        stored = threads.get(thread) or StoredThread(thread, ())
        kept[thread] = _find_kept(stored, turns[thread], history.outages)
        _check_transcript(found, stored, turns[thread], replies, forgotten, kept[thread])
        _check_frame(found, stored)
        _check_due(found, stored, history)
        _check_dates(found, stored, history)
    _check_prompts(found, history.prompts, turns, forgotten, kept)
    _check_readings(found, history, replies)
    _check_leases(found, history.leases)
    return found


def _end_with_outage(turn: Turn, outages: Iterable[Outage]) -> Turn:
    """Return the turn as if it had ended when it was stored at the latest."""
    for outage in outages:
        if turn.began_at <= outage.ended_at and turn.ended_at >= outage.began_at:
            turn = turn._replace(ended_at=max(turn.ended_at, outage.ended_at))
    return turn


# ── a store that was taken back ───────────────────────────────────────────────────────────────────


def _check_undone(found: Findings, history: History) -> None:
    """Nothing of a turn that a restore has undone is stored, or told to a model server by a process
    that has read it before, unless its client shows it again."""
    for restore in history.restores:
        undone = {turn.said for turn in history.turns if restore.undoes(turn.began_at)}
        undone |= {prompt.reply for prompt in history.prompts if prompt.said in undone}
        later = [turn for turn in history.turns if turn.began_at > restore.restored_at]
        undone -= {mark for turn in later for mark in (turn.said, *turn.shows, *turn.takes_back)}
        said_later = {turn.said for turn in later}
        for prompt in history.prompts:
            told = {*prompt.marks, *prompt.noted} & undone
            if prompt.said in said_later and told:
                found.undone.append(f"the prompt of {prompt.said} tells {' '.join(sorted(told))}")
        found.undone += [
            f"{message.mark} is live"
            for stored in history.threads
            for message in stored.messages
            if message.mark in undone
        ]


def _leave_undone_open(history: History) -> History:
    """Return the history as if no client knew the end of what a restore has undone."""
    restores = history.restores
    return replace(
        history,
        turns=tuple(
            turn._replace(outcome="unknown", has_waited=False)
            if any(restore.undoes(turn.began_at) for restore in restores)
            else turn
            for turn in history.turns
        ),
        forgettings=tuple(
            forgetting
            for forgetting in history.forgettings
            if not any(restore.undoes(forgetting.ended_at) for restore in restores)
        ),
    )


# ── the transcript ────────────────────────────────────────────────────────────────────────────────


def _check_transcript(
    found: Findings,
    stored: StoredThread,
    turns: Sequence[Turn],
    replies: Mapping[str, set[str]],
    forgotten: frozenset[str],
    kept: frozenset[str],
) -> None:
    """Each acknowledged text is live once, each unknown one at most once, and no other. They stand
    in the order in which they were said."""
    live = [message.mark for message in stored.messages]
    counts = Counter(live)
    found.doubled += [mark for mark, count in counts.items() if count > 1]
    taken_back = _find_taken_back(turns)
    acknowledged = {
        mark for turn in turns if turn.outcome == "acknowledged" for mark in (turn.said, turn.reply)
    }
    # a fork that may have been stored leaves unknown whether its branch stands
    perhaps_taken_back = {
        mark for turn in turns if turn.outcome == "unknown" for mark in turn.takes_back
    }
    excused = taken_back | perhaps_taken_back | forgotten | {""}
    waited = {mark for turn in turns if turn.has_waited for mark in (turn.said, turn.reply)}
    found.lost += sorted((acknowledged | waited) - counts.keys() - excused)
    found.taken_back += [f"{mark} is live" for mark in counts if mark in taken_back - kept]
    unknown = {turn.said for turn in turns if turn.outcome == "unknown"}
    possible = acknowledged | unknown
    for said in unknown:
        possible |= replies.get(said, set())
    found.foreign += [mark for mark in counts if mark not in possible | taken_back]
    found.resurrected += [f"{mark} is live" for mark in counts if mark in forgotten]
    _check_order(found, turns, {mark: place for place, mark in enumerate(live)})


def _find_taken_back(turns: Iterable[Turn]) -> set[str]:
    """Return what acknowledged forks left out, and what was not said again since."""
    taken_back: set[str] = set()
    for turn in sorted(turns, key=lambda turn: turn.ended_at):
        if turn.outcome == "acknowledged":
            taken_back |= set(turn.takes_back)
            taken_back -= {turn.said, *turn.shows}
    return taken_back


def _find_kept(
    stored: StoredThread, turns: Sequence[Turn], outages: Iterable[Outage]
) -> frozenset[str]:
    """Return what forks took back while the store was away for some process, and the log covers: it
    stays beside them (docs/contributing/storage.md#turns-that-waited)."""
    outages = tuple(outages)
    covered = {message.mark for message in stored.messages if message.seq <= stored.coverage}
    return frozenset(
        mark
        for turn in turns
        if turn.takes_back and any(o.began_at <= turn.ended_at <= o.ended_at for o in outages)
        for mark in turn.takes_back
        if mark in covered
    )


def _check_order(found: Findings, turns: Sequence[Turn], places: Mapping[str, int]) -> None:
    done = [
        turn
        for turn in turns
        if turn.outcome == "acknowledged" and turn.said in places and turn.reply in places
    ]
    for turn in done:
        between = places[turn.reply] - places[turn.said] - 1
        # turns at once may be stored question by question, then reply by reply
        if between < 0 or (between and not _overlaps_any(turn, turns)):
            found.disordered.append(f"{turn.reply} does not follow {turn.said}")
    newest: Turn | None = None  # of those that had ended, the one that stands last
    ended = sorted(done, key=lambda turn: turn.ended_at)
    position = 0
    for turn in sorted(done, key=lambda turn: turn.began_at):
        while position < len(ended) and ended[position].ended_at < turn.began_at:
            before = ended[position]
            if newest is None or places[before.said] > places[newest.said]:
                newest = before
            position += 1
        if newest is not None and places[turn.said] < places[newest.said]:
            found.disordered.append(f"{turn.said} stands before {newest.said}")


def _overlaps_any(turn: Turn, turns: Iterable[Turn]) -> bool:
    """Return whether the turn was not alone. One that is unknown may be stored at any time later, by
    a process that stood still."""
    return any(
        other.began_at <= turn.ended_at
        and (other.ended_at >= turn.began_at or other.outcome == "unknown")
        for other in turns
        if other is not turn
    )


def _check_frame(found: Findings, stored: StoredThread) -> None:
    """Each live message is in the tail, or in exactly one range; chains are linked; ranges name the
    branch that stands."""
    name = stored.thread
    if stored.row_count != 1:
        found.broken.append(f"{name} has {stored.row_count} rows")
    seqs = [message.seq for message in stored.messages]
    chains = {message.seq: message.chain for message in stored.messages}
    if any(message.chain != message.linked_chain for message in stored.messages):
        found.broken.append(f"{name} has a broken chain")
    if any(one >= other for one, other in pairwise(seqs)):
        found.broken.append(f"{name} has messages out of order")
    if any(one.last != other.after for one, other in pairwise(stored.ranges)) or any(
        range_.after for range_ in stored.ranges[:1]
    ):
        found.broken.append(f"{name} has ranges with a gap or an overlap")
    if any(chains.get(range_.last) != range_.chain for range_ in stored.ranges):
        found.broken.append(f"{name} has notes of another branch")
    if stored.coverage and stored.coverage not in {range_.last for range_ in stored.ranges}:
        found.broken.append(f"{name} has a coverage where no range ends")
    if list(stored.tail) != [seq for seq in seqs if seq > stored.coverage]:
        found.broken.append(f"{name} has a tail that does not follow its coverage")


def _check_due(found: Findings, stored: StoredThread, history: History) -> None:
    if stored.leased_until > history.at:
        return
    if stored.lacks_due_time:
        found.stranded.append(f"{stored.thread} has work that is due at no time")
    if stored.due_at is None:
        return
    if history.at - stored.due_at > history.max_stranded_s:
        found.stranded.append(f"{stored.thread} is due since {history.at - stored.due_at:.0f} s")


def _check_dates(found: Findings, stored: StoredThread, history: History) -> None:
    """Messages are dated by the store's clock, whatever the clocks of the hosts say."""
    first, last = history.began_at - CLOCK_TOLERANCE_S, history.at + CLOCK_TOLERANCE_S
    found.misdated += [
        f"{message.mark} by {message.at - history.at:.0f} s"
        for message in stored.messages
        if not first <= message.at <= last
    ]


# ── what was read ─────────────────────────────────────────────────────────────────────────────────


def _check_prompts(
    found: Findings,
    prompts: Sequence[Prompt],
    turns: Mapping[str, Sequence[Turn]],
    forgotten: frozenset[str],
    kept: Mapping[str, frozenset[str]],
) -> None:
    """A prompt tells all that was acknowledged before its request began, word for word or in notes,
    and nothing that was taken back by then. It may tell less where memory could not be read, or
    where its process was killed before it could say so."""
    asked: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        asked[prompt.said].append(prompt)
    for turn in (turn for of_thread in turns.values() for turn in of_thread):
        for prompt in asked.get(turn.said, ()):
            if turn.outcome == "acknowledged" and prompt.reply not in ("", turn.reply):
                continue  # of an attempt whose client left
            of_thread = turns[turn.thread]
            _check_prompt(found, prompt, turn, of_thread, forgotten, kept[turn.thread])


def _check_prompt(
    found: Findings,
    prompt: Prompt,
    turn: Turn,
    others: Sequence[Turn],
    forgotten: frozenset[str],
    kept: frozenset[str],
) -> None:
    before = [one for one in others if one.ended_at < turn.began_at]
    told = {*prompt.marks, *prompt.noted}
    taken_back = _find_taken_back(
        [*before, turn._replace(outcome="acknowledged", ended_at=turn.began_at)]
    )
    if old := sorted(told & taken_back - kept):
        found.taken_back.append(f"the prompt of {turn.said} tells {' '.join(old)}")
    if doubled := [mark for mark, count in Counter(prompt.marks).items() if count > 1]:
        found.doubled.append(f"the prompt of {turn.said} tells {' '.join(doubled)} twice")
    if not (turn.has_memory and turn.has_receipt) or turn.outcome == "refused":
        return
    # what a fork left out that is not known to be stored, or not yet, may be missing
    perhaps = {
        mark
        for one in others
        if one.began_at < turn.ended_at
        and (one.outcome == "unknown" or one.ended_at >= turn.began_at)
        for mark in one.takes_back
    }
    must = {
        mark for one in before if one.outcome == "acknowledged" for mark in (one.said, one.reply)
    }
    missing = sorted(must - told - taken_back - perhaps - forgotten - {""})
    if missing:
        found.stale.append(f"the prompt of {turn.said} lacks {' '.join(missing[:5])}")


def _check_readings(found: Findings, history: History, replies: Mapping[str, set[str]]) -> None:
    """Versions and generations of a row grow. Nothing that was forgotten is read afterwards, but for
    what waits in a process that cannot know."""
    readings = history.readings
    unknown = {turn.said for turn in history.turns if turn.outcome == "unknown"}
    waiting = unknown.union(*(replies.get(said, set()) for said in unknown))
    for reading in readings:
        is_outage = any(
            o.began_at <= reading.ended_at and reading.began_at <= o.ended_at
            for o in history.outages
        )
        told = reading.marks - waiting if is_outage else reading.marks
        for forgetting in history.forgettings:
            if reading.began_at > forgetting.ended_at and told & forgetting.marks:
                found.resurrected.append(f"{reading.thread} was read after it was forgotten")
    by_row: dict[tuple[str, int, int], list[Reading]] = defaultdict(list)
    for reading in readings:
        if reading.version < 0:
            continue  # of turns that wait to be stored: only this process knows them
        # a store that was taken back gives versions out again
        restore_count = sum(reading.began_at > one.restored_at for one in history.restores)
        by_row[reading.thread, reading.row_id, restore_count].append(reading)
    for (thread, _, _), of_row in by_row.items():
        for before, after in _pair_in_time(of_row):
            if after.version < before.version:
                found.stale.append(f"{thread} was read with an older version")
            elif after.generation < before.generation:
                found.shrunk.append(f"{thread} has an older generation")


def _pair_in_time(readings: Sequence[Reading]) -> Iterator[tuple[Reading, Reading]]:
    """Yield each reading with the newest version among those that had ended when it began."""
    ended = sorted(readings, key=lambda reading: reading.ended_at)
    position, newest = 0, None
    for reading in sorted(readings, key=lambda reading: reading.began_at):
        while position < len(ended) and ended[position].ended_at < reading.began_at:
            if newest is None or ended[position].version > newest.version:
                newest = ended[position]
            position += 1
        if newest is not None:
            yield newest, reading


def _check_leases(found: Findings, leases: Sequence[Lease]) -> None:
    """A lease has one holder at a time: the next one begins when it has ended or was given back."""
    by_key: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        by_key[lease.key].append(lease)
    for key, of_key in by_key.items():
        for before, after in pairwise(sorted(of_key, key=lambda lease: lease.began_at)):
            if after.holder != before.holder and after.began_at < before.holds_until:
                found.owned_twice.append(f"{key}: {before.holder} and {after.holder}")
