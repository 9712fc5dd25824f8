"""What should happen to a memory, and what the memory is afterwards: every rule of observing and reflecting, in one file.

Two rules of the house:

1. Everything that decides or changes what is observed, active or reflected stands here, as functions of plain values.
   Whoever performs a decision (engine.py) only fetches, calls models and commits.
2. Finished work is recognised by value. A chunk names the range and the chain it was made from, a reflection the entries and
   the generation; a transition whose premise no longer holds returns the memory unchanged. No flag has to be cleared.

Theory of operation. The tail grows with every turn. After a reply, once an *interval* of new messages has gathered, the observer
turns them into a chunk (`after_reply` → Observe). When the tail reaches the threshold T, the oldest chunks become log entries and
their messages leave the prompt (`before_forwarding` → Activate): no model call, one break of the provider's prompt cache.
Only if that did not suffice does a request wait for an observation (Observe with `wait`). The log grows likewise: from half of R
on a reflection of all its entries is made in the background and swapped in at R.

    tail   0 ────────── interval ── … ── T (activate) ── block_at (wait)
    log    0 ── reflect_from (background) ── R (swap) ── reflect_block_at (wait)

Numbers and their meaning: thresholds.py; the specification: behaviour.md 5 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from operator import itemgetter

from msgspec.structs import replace

from proxy.memory import blocks
from proxy.memory.model import RECENT, Mark, Memory, Message, Observation, Reflection, Trouble, weight
from proxy.memory.thresholds import LEAST_RAW, NEAR, OVERSHOOT, Limits

BACKGROUND_SHARE = 0.75  # a background reflection is accepted at this share of its input or less
LONGEST_BATCH = 120_000  # tokens one waited-for observation may read: what common windows hold
BACK_OFF = 60.0  # seconds after the first failure, doubling
BACK_OFF_MOST = 6 * 3_600.0  # seconds
PARK_AFTER = 8  # failures in a row


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
    """Have the first `entries` entries of the log compressed; accepted below `accept_below` tokens."""

    entries: int
    accept_below: int
    wait: bool = False


Decision = Activate | Swap | Observe | Reflect


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request allows: the newest message that may leave its own prompt, and how it found the thread."""

    coverable: int  # seq; what the request itself asks lies after it
    idle: float = 0.0  # seconds since the thread's last turn
    provider_changed: bool = False


def before_forwarding(memory: Memory, limits: Limits, asked: Asked, *, waited: bool = False) -> Decision | None:
    """The next thing due before this request's prompt is built; ask again after performing it. `waited`: it has waited already.

    `memory` is the virtual one, with the request's own messages in its tail; `quiet` has said that something may be due.
    """
    limits = limits.for_memory(log=memory.log_tokens, pending=memory.pending)
    if activation := _activation(memory, limits, asked):
        return activation
    if memory.reflection and memory.log_tokens >= limits.reflect_at:
        return Swap()
    if waited or memory.trouble.failures:
        return None  # a thread in back-off or parked goes raw (behaviour.md 5)
    return _waited_observation(memory, limits, asked) or _waited_reflection(memory, limits)


def quiet(memory: Memory, limits: Limits, *, idle: float, provider_changed: bool) -> bool:
    """Whether certainly nothing is due before forwarding, told without a look at any message: the case of most requests."""
    if memory.chunks and limits.activate_after_idle is not None and idle >= limits.activate_after_idle:
        return False
    if memory.chunks and limits.activate_on_provider_change and provider_changed:
        return False
    pending, log = memory.pending, memory.log_tokens
    limits = limits.for_memory(log=log, pending=pending)
    return pending < min(limits.observe_at, limits.block_at) and log < min(limits.reflect_at, limits.reflect_block_at)


def after_reply(memory: Memory, limits: Limits) -> Decision | None:
    """The next thing due in the background; whether the thread's back-off allows it is the caller's question (`Trouble`)."""
    limits = limits.for_memory(log=memory.log_tokens, pending=memory.pending)
    return _buffering(memory, limits) or _background_reflection(memory, limits)


def ripe(tail: Sequence[Message]) -> int:
    """Tokens up to the last safe cut: what all triggers measure (behaviour.md 5)."""
    ends = blocks.closed_ends([m.mark for m in tail])
    return weight(tail[: ends[-1] + 1]) if ends else 0


def chunks_to_activate(sizes: Sequence[int], pending: int, limits: Limits) -> int:
    """How many chunks of these source sizes leave the tail, oldest first. `sizes` is not empty; the arithmetic is behaviour.md 5's.

    The smallest prefix that reaches the target, unless it overshoots by too much or leaves too little raw; else the largest
    prefix below the target; else the first chunk.
    """
    target = max(0, pending - limits.keep)
    removed = list(accumulate(sizes))
    reaching = next((i + 1 for i, total in enumerate(removed) if total >= target), None)
    if reaching is not None:
        total = removed[reaching - 1]
        if total - target <= OVERSHOOT * limits.keep and pending - total >= min(LEAST_RAW, limits.keep):
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


def _waited_observation(memory: Memory, limits: Limits, asked: Asked) -> Observe | None:
    pending = ripe(memory.tail)
    if pending < limits.block_at or memory.chunks:
        return None
    marks = [m.mark for m in memory.tail if m.seq <= asked.coverable]
    room = min(pending - limits.keep, LONGEST_BATCH)
    return _observe(memory, marks, blocks.safe_cut(marks, max(room, 1), (limits.interval or 0) // 2), wait=True)


def _buffering(memory: Memory, limits: Limits) -> Observe | None:
    if limits.interval is None:
        return None
    fresh = [m for m in memory.tail if m.seq > memory.chunked_to]
    least = limits.interval // 2
    if weight(fresh) < least:
        return None
    near = ripe(memory.tail) >= limits.observe_at - NEAR * limits.interval
    if ripe(fresh) < (least if near else limits.interval):
        return None
    marks = [m.mark for m in fresh]
    return _observe(memory, marks, blocks.safe_cut(marks, limits.observe_at, least))


def _observe(memory: Memory, marks: Sequence[Mark], count: int, wait: bool = False) -> Observe | None:
    if not count:
        return None
    after, last = memory.chunked_to, marks[count - 1].seq
    return Observe(after, last, weight(between(memory, after, last)), wait)


def _waited_reflection(memory: Memory, limits: Limits) -> Reflect | None:
    if memory.log_tokens < limits.reflect_block_at or memory.unproductive_at == memory.log_tokens:
        return None
    return Reflect(len(memory.log), limits.reflect_at, wait=True)


def _background_reflection(memory: Memory, limits: Limits) -> Reflect | None:
    size = memory.log_tokens
    if limits.reflect_from is None or memory.reflection or size < limits.reflect_from or memory.unproductive_at == size:
        return None
    return Reflect(len(memory.log), round(size * BACKGROUND_SHARE) + 1)


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
        trouble=Trouble(),
        title=chunk.title or memory.title,
    )


def activated(memory: Memory, ids: Sequence[int], now: float) -> Memory:
    """With the chunks of these ids in the log, as far as they still are the oldest ones; the prefix changes, so the render date moves."""
    count = 0
    while count < min(len(ids), len(memory.chunks)) and memory.chunks[count].id == ids[count]:
        count += 1
    if not count:
        return memory
    moved = memory.chunks[:count]
    return replace(
        _covered(memory, moved[-1].last),
        log=memory.log + moved,
        chunks=memory.chunks[count:],
        render_date=now,
    )


def _covered(memory: Memory, last: int) -> Memory:
    """With coverage moved to `last`; the log must already reach there."""
    gone = [m for m in memory.tail if m.seq <= last]
    return replace(
        memory,
        coverage=last,
        covered_count=memory.covered_count + len(gone),
        covered_tokens=memory.covered_tokens + weight(gone),
        recent=(memory.recent + tuple(m.mark for m in gone))[-RECENT:],
        tail=memory.tail[len(gone) :],
    )


def reflected(memory: Memory, reflection: Reflection) -> Memory:
    """With the reflection kept beside the log, if its sources still begin it."""
    return replace(memory, reflection=reflection, trouble=Trouble()) if _fits(memory, reflection) else memory


def _fits(memory: Memory, reflection: Reflection) -> bool:
    ids = tuple(o.id for o in memory.log[: len(reflection.sources)])
    return reflection.generation == memory.generation and ids == reflection.sources


def swapped(memory: Memory, now: float) -> Memory:
    """The next generation: the reflection, then the entries that came after what it stands for, byte for byte. Chunks stay."""
    made = memory.reflection
    if made is None or not _fits(memory, made):
        return replace(memory, reflection=None) if made else memory
    sources, later = memory.log[: len(made.sources)], memory.log[len(made.sources) :]
    entry = Observation(
        id=memory.next_id,
        after=sources[0].after,
        last=sources[-1].last,
        chain=sources[-1].chain,
        text=made.text,
        tokens=made.tokens,
        source_tokens=sum(o.source_tokens for o in sources),
        at=made.at,
        task=made.task or newest(sources, "task"),
        suggestion=made.suggestion or newest(sources, "suggestion"),
        kind="reflection",
        model=made.model,
    )
    return replace(
        _next_generation(memory, (entry, *later)),
        next_id=memory.next_id + 1,
        reflection=None,
        unproductive_at=0,
        render_date=now,
    )


def _next_generation(memory: Memory, log: tuple[Observation, ...]) -> Memory:
    return replace(memory, log=log, generation=memory.next_generation, next_generation=memory.next_generation + 1)


def newest(entries: Sequence[Observation], hint: str) -> str | None:
    """The newest non-empty `task` or `suggestion`: leaving one out keeps the old (behaviour.md 6)."""
    return next((value for o in reversed(entries) if (value := getattr(o, hint))), None)


def unproductive(memory: Memory, size: int) -> Memory:
    """Reflecting a log of `size` tokens achieved nothing: not again until it has grown."""
    return replace(memory, unproductive_at=size) if memory.log_tokens == size else memory


def failed(memory: Memory, now: float, jitter: float) -> Memory:
    """One more failure of a memory model: nothing is tried for 1 min … 6 h, after 8 in a row not at all. `jitter` in [0, 1)."""
    failures = memory.trouble.failures + 1
    pause = min(BACK_OFF * 2 ** (failures - 1), BACK_OFF_MOST)
    return replace(memory, trouble=Trouble(failures, now + pause * (1 + jitter / 4), failures >= PARK_AFTER))


def due_at(memory: Memory, limits: Limits, now: float) -> float | None:
    """When the background should look at this thread, as far as can be said now; None: not before its next turn."""
    if memory.trouble.parked or after_reply(memory, limits) is None:
        return None
    return max(now, memory.trouble.until)


# ── memory follows the branch ────────────────────────────────────────────────────────────────────────────────────────


def within(log: Sequence[Observation], cut: int, live: Mapping[int, bytes]) -> tuple[Observation, ...]:
    """The first entries of a log, as far as they cover nothing after `cut` and nothing of another branch.

    `live`: the chain at each live message. An older generation may cover an abandoned branch whose seqs lie below the cut: only
    the chain tells.
    """
    stands = (o.last <= cut and (not o.last or live.get(o.last) == o.chain) for o in log)
    return tuple(o for o, _ in takewhile(itemgetter(1), zip(log, stands, strict=True)))


def reach(log: Sequence[Observation]) -> int:
    """The coverage of a log."""
    return log[-1].last if log else 0


def fallback(
    memory: Memory, cut: int, older: Sequence[tuple[int, tuple[Observation, ...]]], live: Mapping[int, bytes]
) -> tuple[Observation, ...]:
    """The newest state of the log that covers nothing after `cut`, of this generation or an older one: the one reaching furthest.

    A reflection that swallowed what the client took back gives way to the generation before it. `live` as in `within`.
    """
    states = [within(log, cut, live) for log in (memory.log, *(log for _, log in older))]
    return max(states, key=reach)  # max keeps the first of equals: the newest generation


def rolled_back(
    memory: Memory,
    cut: int,
    log: tuple[Observation, ...],
    recent: Sequence[Mark],
    tail: Sequence[Message],
    before: tuple[int, int],
    now: float,
) -> Memory:
    """The memory of the branch that ends at `cut`: `log` from `fallback`, and raw again whatever that uncovers.

    `recent`: the newest live marks up to the log's reach; `tail`: the live messages after it, through `cut` or further;
    `before`: count and weight of all live messages up to the reach. The messages after `cut` stay in the tail: superseding
    them is `turns.heard`'s.
    """
    coverage = reach(log)
    rolled = _next_generation(memory, log) if log != memory.log else memory
    return replace(
        rolled,
        coverage=coverage,
        covered_count=before[0],
        covered_tokens=before[1],
        recent=tuple(recent)[-RECENT:],
        tail=tuple(tail),
        chunks=tuple(c for c in memory.chunks if c.last <= cut and c.after >= coverage),
        reflection=_carried(memory.reflection, rolled),
        unproductive_at=0,
        render_date=now,
    )


def _carried(made: Reflection | None, memory: Memory) -> Reflection | None:
    """A pending reflection goes exactly when its range reaches the fork: when its sources no longer begin the log."""
    moved = replace(made, generation=memory.generation) if made else None
    return moved if moved and _fits(memory, moved) else None
