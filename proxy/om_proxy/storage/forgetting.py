"""Plans what forgetting a thread changes beside its own rows. Each backend carries the plan, plain
values, out in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.memory.lifecycle import forgetting, shared
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Key, Mark, Memory, Message, Observation
from om_proxy.storage.base import ForgetResult

LabelThread = Callable[[Key], str]  # gives the name of a thread in a shared log


def create_labels(secret: bytes) -> LabelThread:
    return partial(label_thread, secret)


class LogRemoval(NamedTuple):
    """The removal of a thread's part from the log it shared."""

    log: Memory  # the shared log afterwards
    observations: tuple[int, ...]  # ids of the removed entries of all generations
    generations: int  # that held any of those
    reflections: int
    # threads of which the log covers less afterwards, each with the seq it still covers
    uncovered: tuple[tuple[Key, int], ...]

    def add_to(self, removed: ForgetResult) -> ForgetResult:
        return removed._replace(
            observations=removed.observations + len(self.observations),
            generations=removed.generations + self.generations,
            reflections=removed.reflections + self.reflections,
        )


def plan_log_removal(
    shared_log: Memory,
    older: Sequence[tuple[int, tuple[Observation, ...]]],
    key: Key,
    others: Sequence[Key],
    labels: LabelThread,
) -> LogRemoval:
    """`older`: the older generations of the shared log; `others`: the threads that go on sharing
    it."""
    label = labels(key)
    after = forgetting.remove_thread(shared_log, older, label)
    mentions = [
        [o.id for o in entries if forgetting.mentions_thread(o, label)]
        for entries in (shared_log.log.entries, *(entries for _, entries in older))
    ]
    fallen = [
        key
        for key in others
        if forgetting.covers_less(shared_log.log.entries, after.log.entries, labels(key))
    ]
    return LogRemoval(
        log=after,
        observations=tuple(sorted({id_ for ids in mentions for id_ in ids})),
        generations=sum(map(bool, mentions)),
        reflections=int(shared_log.log.reflection is not None),
        uncovered=tuple(
            (key, shared.thread_coverage(after.log.entries, labels(key))) for key in fallen
        ),
    )


def uncover_thread(
    thread: Memory,
    log: Memory,
    label: str,
    recent: Sequence[Mark],
    tail: Sequence[Message],
    before: tuple[int, int],
) -> Memory:
    """Return a thread of `LogRemoval.uncovered` as it is to be stored. `recent`: its newest live
    marks up to the seq given there; `tail`: its live messages after it; `before`: the count and
    payload tokens of all live messages up to it."""
    count, tokens = before
    framed_tokens = tokens + MESSAGE_FRAMING_TOKENS * count
    return forgetting.uncover_thread(thread, log, label, recent, tail, (count, framed_tokens))
