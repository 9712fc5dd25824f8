"""Plan what forgetting a thread changes besides its own rows. The plan is plain values; each
backend carries it out in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from om_proxy.memory.lifecycle import branch, log_sharing
from om_proxy.memory.model import (
    MESSAGE_FRAMING_TOKENS,
    RESOURCE_THREAD,
    Generation,
    Key,
    Mark,
    Memory,
    Message,
    resource_key,
)
from om_proxy.settings.identity.keyed_hashes import digest_name, label_thread
from om_proxy.storage.values.records import ForgetResult

LabelThread = Callable[[Key], str]  # returns the name of a thread in a shared log


def create_thread_labeler(secret: bytes) -> LabelThread:
    return partial(label_thread, secret)


# Kept as long as events: by then no turn that began before is under way or waits.
MAX_FORGOTTEN_NAMES = 10_000
# A name with a later time was noted by a clock that has been put right since. It would keep first
# turns away until that time.
MAX_NAME_AHEAD_S = 3_600.0


# in one batch of threads that are forgotten, or those of one longer thread
MAX_BATCH_MESSAGES = 2_000


def count_batch_threads(message_counts: Sequence[int]) -> int:
    """Return how many of the first threads make one batch: at least one, if there is any."""
    total = 0
    for place, count in enumerate(message_counts):
        total += count
        if place and total > MAX_BATCH_MESSAGES:
            return place
    return len(message_counts)


class FirstTurn(NamedTuple):
    """A turn that makes the row of its thread: not if a name of it was forgotten after it began."""

    digests: tuple[bytes, ...]  # of the thread, its resource and its tenant
    began_at: float  # unix seconds


def digest_names(secret: bytes, key: Key) -> tuple[bytes, ...]:
    """Return what stands for this name, its resource and its tenant among forgotten names."""
    names = (key, resource_key(key), Key(key.tenant, "", RESOURCE_THREAD))
    return tuple(digest_name(secret, name) for name in names)


class LogRemoval(NamedTuple):
    """The plan that removes a thread's part from the log it shared."""

    log: Memory  # the shared log afterwards
    observations: tuple[int, ...]  # ids of the removed entries of all generations
    generations: int  # number of generations that held any of those
    reflections: int
    # threads of which the log covers less afterwards, each with the last seq that stays covered
    uncovered: tuple[tuple[Key, int], ...]

    def add_to(self, removed: ForgetResult) -> ForgetResult:
        """Return the result with this removal counted in."""
        return removed._replace(
            observations=removed.observations + len(self.observations),
            generations=removed.generations + self.generations,
            reflections=removed.reflections + self.reflections,
        )


def plan_log_removal(
    shared_log: Memory,
    older_generations: Sequence[Generation],
    key: Key,
    others: Sequence[Key],
    label_of: LabelThread,
    now: float,
) -> LogRemoval:
    """Plan the removal of the thread `key` from the shared log and its older generations.
    `others`: the threads that keep sharing the log; `now`: unix seconds."""
    label = label_of(key)
    after = branch.remove_thread(shared_log, older_generations, label, now)
    mentions = [
        [entry.id for entry in entries if branch.mentions_thread(entry, label)]
        for entries in (shared_log.log.entries, *(entries for _, entries in older_generations))
    ]
    uncovered = [
        other
        for other in others
        if branch.covers_less(shared_log.log.entries, after.log.entries, label_of(other))
    ]
    return LogRemoval(
        log=after,
        observations=tuple(sorted({id_ for ids in mentions for id_ in ids})),
        generations=sum(map(bool, mentions)),
        reflections=int(shared_log.log.reflection is not None),
        uncovered=tuple(
            (other, log_sharing.find_thread_coverage(after.log.entries, label_of(other)))
            for other in uncovered
        ),
    )


def uncover_thread(
    thread: Memory,
    log: Memory,
    label: str,
    recent: Sequence[Mark],
    tail: Sequence[Message],
    covered: tuple[int, int],
) -> Memory:
    """Return a thread of `LogRemoval.uncovered` as it is to be stored. `recent`: its newest live
    marks up to the last covered seq; `tail`: its live messages after that seq; `covered`: the count
    and payload tokens of all live messages up to that seq."""
    count, tokens = covered
    framed_tokens = tokens + MESSAGE_FRAMING_TOKENS * count
    return branch.uncover_thread(thread, log, label, recent, tail, (count, framed_tokens))
