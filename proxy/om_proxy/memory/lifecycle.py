"""What should happen to a memory, and what the memory is afterwards: every rule of observing and reflecting, in one file.

Two rules of the house:

1. Everything that decides or changes what is observed, active or reflected stands here, as functions of plain values.
   Whoever performs a decision (engine.py) only fetches, calls models and commits.
2. Finished work is recognised by value. A chunk names the range and the chain it was made from, a reflection the entries and
   the generation; a transition whose premise no longer holds returns the memory unchanged. No flag has to be cleared.

Theory of operation. The tail grows with every turn. After a reply, once an *interval* of new messages has gathered, the observer
turns them into a chunk (`after_reply` → Observe). When the tail reaches the threshold T, the oldest chunks become log entries and
their messages leave the prompt (`before_forwarding` → Activate): no model call, one break of the provider's prompt cache.
Only if that did not suffice does a request wait for an observation (Observe with `wait`). After a pause that cache is cold anyway:
then chunks may become active below T, once, and half an interval is worth a chunk. The log grows likewise: from half of R
on a reflection of a stretch of its entries is made in the background and swapped in at R; the next ones from 0.9 R on. Which entries,
and how short: condensing.py.

    tail   0 ────────── interval ── … ── T (activate) ── block_at (wait)
    log    0 ── reflect_from (background) ── R (swap) ── reflect_block_at (wait)

Numbers and their meaning: thresholds.py; the contract: docs/spec/behaviour.md#observe and
docs/spec/behaviour.md#reflect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory import blocks, condensing, prompt_cache, shared
from om_proxy.memory.economy import pays_back
from om_proxy.memory.model import (
    MESSAGE_FRAMING_TOKENS,
    RECENT_MARKS,
    Mark,
    Memory,
    Message,
    Observation,
    Reflection,
    Trouble,
    weight,
)
from om_proxy.memory.thresholds import MAX_OVERSHOOT_SHARE, MIN_RAW_TOKENS, NEAR_THRESHOLD_INTERVALS, Limits

# Of R, from where on the next reflection is made once the log holds one. Made earlier, it would have to take older notes for want of new.
LATER_REFLECTION_SHARE = 0.9
# read by one waited-for observation where there is no other limit: what common windows hold
MAX_BATCH_TOKENS = 120_000
FIRST_BACK_OFF_S = 60.0  # after the first failure; it doubles with each one more
MAX_BACK_OFF_S = 6 * 3_600.0
PARK_AFTER_FAILURES = 8  # in a row
REFLECTION_CAUSE_PREFIX = "reflect"  # how the cause of a reflection's failure begins


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Activate:
    """Make the first `count` chunks log entries."""

    count: int
    why: str  # threshold | idle | provider


@dataclass(frozen=True, slots=True)
class Swap:
    """Put the finished reflection in place of the entries it was made from."""


@dataclass(frozen=True, slots=True)
class Observe:
    """Have the live messages with `after < seq <= last` observed; `wait`: the request waits for it, within its deadline."""

    after: int
    last: int
    tokens: int
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Reflect:
    """Have `entries` entries of the log condensed, from index `start` on; accepted below `accept_below` tokens."""

    entries: int
    accept_below: int
    wait: bool = False
    start: int = 0


Decision = Activate | Swap | Observe | Reflect


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request allows: the newest message that may leave its own prompt, and how it found the thread."""

    coverable: int  # seq; what the request itself asks lies after it
    idle: float = 0.0  # seconds its prompt cache was left alone
    provider_changed: bool = False  # it comes to another cache
    now: float = 0.0  # unix seconds


def coverable(memory: Memory) -> int:
    """seq of the newest message before what the newest request itself asks."""
    first = blocks.asked([m.mark for m in memory.tail])
    return memory.tail[first - 1].seq if first else memory.coverage


def found(memory: Memory, model: str | None, now: float) -> tuple[float, bool]:
    """How a request finds its prompt cache: seconds since the prompt was last sent or changed, and whether this model's never saw it.

    An activation sets the render date, so a pause or a change of models is used once: the chunks that it leaves stay buffered.
    """
    if memory.turn_at is None:
        return 0.0, False
    if memory.render_date is not None and memory.render_date > memory.turn_at:
        return now - memory.render_date, False
    return now - memory.turn_at, prompt_cache.moved(memory.model, model)


def before_forwarding(memory: Memory, limits: Limits, asked: Asked, *, waited: bool = False) -> Decision | None:
    """The next thing due before this request's prompt is built; ask again after performing it. `waited`: it has waited already.

    `memory` is the virtual one, with the request's own messages in its tail; `quiet` has said that something may be due.
    """
    most = limits.observe_at
    limits = limits.for_memory(log=memory.log_tokens, pending=memory.pending)
    if activation := _activation(memory, limits, asked):
        return activation
    if memory.reflection and memory.log_tokens >= limits.reflect_at:
        return Swap()
    if waited or _goes_raw(memory.trouble, limits, asked.now):
        return None
    return _waited_observation(memory, limits, asked, most) or _waited_reflection(memory, limits)


def quiet(memory: Memory, limits: Limits, *, idle: float, provider_changed: bool) -> bool:
    """Whether certainly nothing is due before forwarding, told without a look at any message: the case of most requests."""
    if memory.chunks and limits.activate_after_idle is not None and idle >= limits.activate_after_idle:
        return False
    if memory.chunks and limits.activate_on_provider_change and provider_changed:
        return False
    pending, log = memory.pending, memory.log_tokens
    limits = limits.for_memory(log=log, pending=pending)
    return pending < min(limits.observe_at, limits.block_at) and log < min(limits.reflect_at, limits.reflect_block_at)


def after_reply(memory: Memory, limits: Limits, now: float = 0.0) -> Decision | None:
    """The next thing due in the background; whether the thread's back-off allows it is the caller's question (`Trouble`).

    `now`: unix seconds; without it the thread counts as busy.
    """
    most = limits.observe_at
    limits = limits.for_memory(log=memory.log_tokens, pending=memory.pending)
    return _buffering(memory, limits, most, now) or reflection_due(memory, limits)


def fresh(memory: Memory) -> int:
    """Tokens that could be observed and are not."""
    return ripe([m for m in memory.tail if m.seq > memory.chunked_to])


def ripe(tail: Sequence[Message]) -> int:
    """Tokens up to the last safe cut: what all triggers measure
    (docs/spec/behaviour.md#safe-cut)."""
    ends = blocks.closed_ends([m.mark for m in tail])
    return weight(tail[: ends[-1] + 1]) if ends else 0


def chunks_to_activate(sizes: Sequence[int], pending: int, limits: Limits) -> int:
    """How many chunks of these source sizes leave the tail, oldest first. `sizes` is not empty; the
    arithmetic is that of docs/spec/behaviour.md#activate.

    The smallest prefix that reaches the target, unless it overshoots by too much or leaves too little raw; else the largest
    prefix below the target; else the first chunk.
    """
    target = max(0, pending - limits.keep)
    removed = list(accumulate(sizes))
    reaching = next((i + 1 for i, total in enumerate(removed) if total >= target), None)
    if reaching is not None:
        total = removed[reaching - 1]
        if total - target <= MAX_OVERSHOOT_SHARE * limits.keep and pending - total >= min(MIN_RAW_TOKENS, limits.keep):
            return reaching
    below = sum(total < target for total in removed)
    return below or 1


def _activation(memory: Memory, limits: Limits, asked: Asked) -> Activate | None:
    allowed = [c.source_tokens for c in memory.chunks if c.last <= asked.coverable]
    if not allowed:
        return None
    pending = ripe(memory.tail)
    count = chunks_to_activate(allowed, pending, limits)
    if pending >= limits.observe_at:
        return Activate(count, "threshold")
    if limits.activate_after_idle is not None and asked.idle >= limits.activate_after_idle:
        return Activate(count, "idle")
    if limits.activate_on_provider_change and asked.provider_changed:
        return Activate(count, "provider")
    return None


def _goes_raw(trouble: Trouble, limits: Limits, now: float) -> bool:
    """A thread in back-off or parked is not waited for (docs/spec/behaviour.md#wait). The next try
    is the background's, where there is any."""
    return trouble.parked or (trouble.failures > 0 and (limits.interval is not None or now < trouble.until))


def _waited_observation(memory: Memory, limits: Limits, asked: Asked, most: int) -> Observe | None:
    """`most`: tokens one observation reads, T as set; the rest of a backlog is the background's, where there is any."""
    pending = ripe(memory.tail)
    if pending < limits.block_at or memory.chunks:
        return None
    marks = [m.mark for m in memory.tail if m.seq <= asked.coverable]
    room = max(min(pending - limits.keep, most if limits.interval else MAX_BATCH_TOKENS), 1)
    return _observe(memory, marks, blocks.safe_cut(marks, room, (limits.interval or room) // 2), wait=True)


def _buffering(memory: Memory, limits: Limits, most: int, now: float) -> Observe | None:
    if limits.interval is None:
        return None
    fresh = [m for m in memory.tail if m.seq > memory.chunked_to]
    least = limits.interval // 2
    if weight(fresh) < least:
        return None
    near = ripe(memory.tail) >= limits.observe_at - NEAR_THRESHOLD_INTERVALS * limits.interval
    if ripe(fresh) < (least if near or is_left_alone(memory, limits, now) else limits.interval):
        return None
    marks = [m.mark for m in fresh]
    found = _observe(memory, marks, _at_least(marks, blocks.safe_cut(marks, most, least), least))
    if found and limits.prices and not pays_back(memory, found.tokens, limits, limits.prices):
        return None
    return found


def everything(memory: Memory, most: int) -> Observe | None:
    """All that could be observed and is not, up to `most` tokens: a thread's part where several are observed together."""
    marks = [m.mark for m in memory.tail if m.seq > memory.chunked_to]
    return _observe(memory, marks, blocks.safe_cut(marks, most, 0))


def settling(memory: Memory) -> tuple[Observation, ...]:
    """The chunks that may become active while nobody asks (gathering.py): none that covers what stands unanswered, for whoever asks
    it again must find it in the prompt."""
    answered = coverable(memory)
    return tuple(c for c in memory.chunks if c.last <= answered)


def economises(memory: Memory, limits: Limits) -> bool:
    """Whether notes are due that wait because they would cost more than they save (`economy: auto`)."""
    if (
        limits.prices is None or memory.scope == "resource"
    ):  # a resource's threads are observed together, and nothing waits
        return False
    return (
        after_reply(memory, limits) is None
        and after_reply(memory, dataclasses.replace(limits, prices=None)) is not None
    )


def is_left_alone(memory: Memory, limits: Limits, now: float) -> bool:
    """Whether half an interval is worth a chunk (`buffer_on_idle`)."""
    cold = cold_at(memory, limits)
    return cold is not None and now >= cold


def cold_at(memory: Memory, limits: Limits) -> float | None:
    """When the thread has been left alone so long that half an interval is worth a chunk (`buffer_on_idle`); None: never."""
    if limits.buffer_after_idle is None or memory.turn_at is None:
        return None
    return memory.turn_at + limits.buffer_after_idle


def _at_least(marks: Sequence[Mark], count: int, least: int) -> int:
    """The cut, moved on to the first closed end that yields `least` tokens: before a huge block there may be next to nothing."""
    total = list(accumulate(m.tokens + MESSAGE_FRAMING_TOKENS for m in marks))
    if not count or total[count - 1] >= least:
        return count
    return next((end + 1 for end in blocks.closed_ends(marks) if total[end] >= least), count)


def _observe(memory: Memory, marks: Sequence[Mark], count: int, wait: bool = False) -> Observe | None:
    if not count:
        return None
    after, last = memory.chunked_to, marks[count - 1].seq
    return Observe(after, last, weight(between(memory, after, last)), wait)


def _waited_reflection(memory: Memory, limits: Limits) -> Reflect | None:
    if memory.log_tokens < limits.reflect_block_at or memory.unproductive_at == memory.log_tokens:
        return None
    return _reflect(memory, limits, wait=True)


def reflection_due(memory: Memory, limits: Limits) -> Reflect | None:
    """The background reflection that is due."""
    size = memory.log_tokens
    if limits.reflect_from is None or memory.reflection or size < limits.reflect_from or memory.unproductive_at == size:
        return None
    if any(o.kind == "reflection" for o in memory.log) and size < limits.reflect_at * LATER_REFLECTION_SHARE:
        return None
    return _reflect(memory, limits)


def _reflect(memory: Memory, limits: Limits, *, wait: bool = False) -> Reflect:
    stretch = condensing.choose_stretch(memory.log, limits.reflect_at)
    return Reflect(stretch.count, condensing.accepted_below(stretch), wait, stretch.start)


# ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def between(memory: Memory, after: int, last: int) -> tuple[Message, ...]:
    """The messages of the tail with `after < seq <= last`."""
    return tuple(m for m in memory.tail if after < m.seq <= last)


def observed(memory: Memory, chunk: Observation) -> Memory:
    """With the chunk, if it continues what is observed and its messages still stand as they were read; a success ends trouble."""
    stands = chunk.after == memory.chunked_to and any(
        m.seq == chunk.last and m.chain == chunk.chain for m in memory.tail
    )
    if not stands:
        return memory
    return replace(
        memory,
        chunks=(*memory.chunks, replace(chunk, id=memory.next_id)),
        next_id=memory.next_id + 1,
        trouble=relieve(memory.trouble),
        title=memory.title if memory.title_pinned else chunk.title or memory.title,
    )


def activated(memory: Memory, ids: Sequence[int], now: float) -> Memory:
    """With the chunks of these ids in the log, as far as they still are the oldest ones; the prefix changes, so the render date moves."""
    count = 0
    while count < min(len(ids), len(memory.chunks)) and memory.chunks[count].id == ids[count]:
        count += 1
    if not count:
        return memory
    moved = memory.chunks[:count]
    memory = replace(_covered(memory, moved[-1].last), chunks=memory.chunks[count:], render_date=now)
    if memory.hub:
        return shared.entered(memory, moved)
    return replace(memory, log=memory.log + moved)


def _covered(memory: Memory, last: int) -> Memory:
    """With coverage moved to `last`, for a log that reaches there."""
    gone = [m for m in memory.tail if m.seq <= last]
    return replace(
        memory,
        coverage=last,
        covered_count=memory.covered_count + len(gone),
        covered_tokens=memory.covered_tokens + weight(gone),
        recent=(memory.recent + tuple(m.mark for m in gone))[-RECENT_MARKS:],
        tail=memory.tail[len(gone) :],
    )


def reflected(memory: Memory, reflection: Reflection) -> Memory:
    """With the reflection kept beside the log, if its sources still stand in it."""
    return replace(memory, reflection=reflection, trouble=Trouble()) if fits(memory, reflection) else memory


def fits(memory: Memory, reflection: Reflection) -> bool:
    return reflection.generation == memory.generation and find_sources(memory.log, reflection) is not None


def find_sources(log: Sequence[Observation], reflection: Reflection) -> slice | None:
    """Where in the log the entries stand that the reflection replaces; None: not all of them, or no longer side by side."""
    first, count = reflection.sources[:1], len(reflection.sources)
    start = next((i for i, o in enumerate(log) if (o.id,) == first), None)
    if start is None or tuple(o.id for o in log[start : start + count]) != reflection.sources:
        return None
    return slice(start, start + count)


def swapped(memory: Memory, now: float) -> Memory:
    """The next generation: the reflection in place of what it stands for, the other entries byte for byte. Chunks stay."""
    made = memory.reflection
    if made is None:
        return memory
    at = find_sources(memory.log, made)
    if at is None or made.generation != memory.generation:
        return replace(memory, reflection=None)
    earlier, sources, later = memory.log[: at.start], memory.log[at], memory.log[at.stop :]
    entry = Observation(
        id=shared.entry_id(memory),
        after=sources[0].after,
        last=sources[-1].last,
        chain=sources[-1].chain,
        text=made.text,
        tokens=made.tokens,
        source_tokens=sum(o.source_tokens for o in sources),
        at=next((o.at for o in reversed(sources) if o.task is not None), sources[-1].at),
        # what is open now it cannot know where later entries follow
        task=newest_task(sources) if made.task is None or later else made.task,
        suggestion=sources[-1].suggestion,
        kind="reflection",
        model=made.model,
        parts=shared.merged(sources),
        sources=made.sources,
        depth=1 + max(o.depth for o in sources),
    )
    after = shared.numbered(next_generation(memory, (*earlier, entry, *later)), 1)
    may_go_on = condensing.frees_enough(sum(o.tokens for o in sources), entry.tokens)
    return replace(after, reflection=None, unproductive_at=0 if may_go_on else after.log_tokens, render_date=now)


def next_generation(memory: Memory, log: tuple[Observation, ...]) -> Memory:
    return replace(memory, log=log, generation=memory.next_generation, next_generation=memory.next_generation + 1)


def newest_task(entries: Sequence[Observation]) -> str | None:
    """The newest current task: leaving it out keeps the old one, an empty one ends it
    (docs/spec/behaviour.md#hints)."""
    return next((o.task for o in reversed(entries) if o.task is not None), None)


class ActiveHints(NamedTuple):
    """What the log tells the actor besides its entries; None: nothing."""

    task: str | None = None
    as_of: float = 0.0  # unix seconds; of the task
    suggestion: str | None = None


def active_hints(memory: Memory) -> ActiveHints:
    """The newest current task with its time, and the suggested response as long as the user has not spoken since it was made.

    Of a log that several threads share, this thread's own. `memory` is the virtual one, with the request's own messages."""
    told = (
        [(p.last, p.at, p.task, p.suggestion) for p in shared.own_parts(memory)]
        if memory.hub
        else [(o.last, o.at, o.task, o.suggestion) for o in memory.log if o.kind != "note"]
    )
    at, task = next(((at, task) for _, at, task, _ in reversed(told) if task is not None), (0.0, None))
    last, _, _, suggestion = told[-1] if told else (0, 0.0, None, None)
    stale = suggestion and has_user_spoken(memory, last)
    return ActiveHints(task or None, at, None if stale else suggestion or None)


def has_user_spoken(memory: Memory, seq: int) -> bool:
    """Whether the tail holds a message of the user's after `seq`."""
    return any(m.item.role == "user" and m.seq > seq for m in memory.tail)


def reaches_newest(memory: Memory, last: int) -> bool:
    """Whether an observation up to `last` knows the newest of what may be covered, and what the user said last: a suggested response
    made ahead of that would be stale before it is shown (docs/spec/behaviour.md#hints)."""
    return last >= coverable(memory) and not has_user_spoken(memory, last)


def current_task(memory: Memory) -> str | None:
    """What the observer knows as the current task: of what is buffered first."""
    buffered = newest_task(memory.chunks)
    return (active_hints(memory).task if buffered is None else buffered) or None


def unproductive(memory: Memory, size: int, cause: str = "") -> Memory:
    """Reflecting a log of `size` tokens achieved nothing: not again until it has grown."""
    if memory.log_tokens != size:
        return memory
    return replace(memory, unproductive_at=size, trouble=replace(memory.trouble, cause=cause))


def relieve(trouble: Trouble) -> Trouble:
    """The trouble after a successful observation: none, but for a reflection that failed, which is another matter."""
    return Trouble(cause=trouble.cause if trouble.cause.startswith(REFLECTION_CAUSE_PREFIX) else "")


def failed(memory: Memory, now: float, jitter: float, cause: str = "") -> Memory:
    """One more failure of a memory model: nothing is tried for 1 min … 6 h, after 8 in a row not at all. `jitter` in [0, 1)."""
    failures = memory.trouble.failures + 1
    pause = min(FIRST_BACK_OFF_S * 2 ** (failures - 1), MAX_BACK_OFF_S)
    return replace(
        memory, trouble=Trouble(failures, now + pause * (1 + jitter / 4), failures >= PARK_AFTER_FAILURES, cause)
    )


def due_at(memory: Memory, limits: Limits, now: float) -> float | None:
    """When the background should look at this thread, as far as can be said now; None: not before its next turn.

    A thread that shares its log is looked at together with the others of its resource (gathering.py).
    """
    if memory.trouble.parked or memory.scope == "resource":
        return None
    cold = cold_at(memory, limits)
    moments = [now] if cold is None or cold <= now else [now, cold]
    due = next((moment for moment in moments if after_reply(memory, limits, moment)), None)
    return None if due is None else max(due, memory.trouble.until)
