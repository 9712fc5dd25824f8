"""The rules of observing and reflecting: what is due for a memory, as functions of plain values.

Two rules of the room:

1. Every rule that decides or changes what is observed, active or reflected is in this room, as
   a function of plain values: decisions here, what a memory is afterwards in transitions.py.
   The code that performs a decision (turns/due_notes.py, background/) only fetches, calls models and
   commits.
2. Finished work is recognised by value. A chunk names the range and the chain it was made from, a
   reflection the entries and the generation. A transition whose premise no longer holds returns the
   memory unchanged. No flag has to be cleared.

Theory of operation. The tail grows with every turn. After a reply, once an *interval* of new
messages has gathered, the observer turns them into a chunk (`decide_after_reply` → Observe). When
the tail reaches the threshold T, the oldest chunks become log entries and their messages leave the
prompt (`decide_before_forwarding` → Activate): no model call, one break of the provider's prompt
cache. If that does not suffice, a request waits for an observation (Observe with `wait`). After a
pause that cache is cold anyway: then chunks may become active below T, once, and half an interval
is worth a chunk. The log grows likewise: from half of R on, a reflection of a stretch of its
entries is made in the background and swapped in at R; the next ones from 0.9 R on. condensing.py
chooses the entries and how short they become.

    tail   0 ────────── interval ── … ── T (activate) ── block_from (wait)
    log    0 ── reflect_ahead_from (background) ── R (swap) ── reflect_block_from (wait)

Numbers and their meaning: thresholds.py; the contract: docs/spec/behaviour.md#observe and
docs/spec/behaviour.md#reflect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from om_proxy.memory import blocks
from om_proxy.memory.lifecycle import condensing, prompt_cache
from om_proxy.memory.lifecycle.economy import pays_back
from om_proxy.memory.lifecycle.observable import messages_between, observable_tokens
from om_proxy.memory.lifecycle.thresholds import (
    MAX_OVERSHOOT_SHARE,
    MIN_RAW_TOKENS,
    NEAR_THRESHOLD_INTERVALS,
    Limits,
)
from om_proxy.memory.model import (
    MESSAGE_FRAMING_TOKENS,
    Failures,
    Mark,
    Memory,
    sum_framed_tokens,
)

# of R; from here on the next reflection is made once the log holds one. An earlier one would have to
# take older notes, because there are too few new ones.
LATER_REFLECTION_SHARE = 0.9
# tokens that one waited-for observation reads where there is no other limit: common windows hold them
MAX_BATCH_TOKENS = 120_000


@dataclass(frozen=True, slots=True)
class Activate:
    """The command to make the first `count` chunks log entries."""

    count: int
    why: str  # threshold | idle | provider


@dataclass(frozen=True, slots=True)
class Swap:
    """The command to put the finished reflection in place of the entries it was made from."""


@dataclass(frozen=True, slots=True)
class Observe:
    """Have the live messages with `after < seq <= last` observed; `wait`: the request waits for it,
    within its deadline."""

    after: int
    last: int
    tokens: int
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Reflect:
    """Have `entries` entries of the log condensed, from index `start` on; accepted below
    `accept_below` tokens."""

    entries: int
    accept_below: int
    wait: bool = False
    start: int = 0


Decision = Activate | Swap | Observe | Reflect


@dataclass(frozen=True, slots=True)
class RequestState:
    """The part of a request that decisions need: the newest message that may leave its own prompt, and how it
    found the thread."""

    last_observable_seq: int  # seq; what the request itself asks lies after it
    idle_s: float = 0.0  # since its prompt was last sent or changed
    has_provider_changed: bool = False  # this model's prompt cache never saw the prompt
    now: float = 0.0  # unix seconds


def prompt_cache_state(memory: Memory, model: str | None, now: float) -> tuple[float, bool]:
    """Return the state in which a request finds its prompt cache: seconds since the prompt was last
    sent or changed, and whether this model's cache never saw it.

    An activation sets the render date, so a pause or a change of models activates chunks once: the
    chunks that it leaves stay buffered.
    """
    if memory.turn_at is None:
        return 0.0, False
    if memory.render_date is not None and memory.render_date > memory.turn_at:
        return now - memory.render_date, False
    return now - memory.turn_at, prompt_cache.has_moved(memory.model, model)


def decide_before_forwarding(
    memory: Memory, limits: Limits, asked: RequestState, *, waited: bool = False
) -> Decision | None:
    """Return the next thing due before this request's prompt is built; ask again after performing
    it. `waited`: the request has waited already.

    `memory` is the projected one, with the request's own messages in its tail; `is_nothing_due` has said
    that something may be due.
    """
    most = limits.observe_from_tokens
    limits = limits.for_memory(log_tokens=memory.log.tokens, pending_tokens=memory.pending_tokens)
    if activation := _due_activation(memory, limits, asked):
        return activation
    if memory.log.reflection and memory.log.tokens >= limits.reflect_from_tokens:
        return Swap()
    if waited or _skips_waiting(memory.failures, limits, asked.now):
        return None
    return _blocking_observation(memory, limits, asked, most) or _blocking_reflection(
        memory, limits
    )


def is_nothing_due(
    memory: Memory, limits: Limits, *, idle_s: float, has_provider_changed: bool
) -> bool:
    """Return whether certainly nothing is due before forwarding, without a look at any message: the
    case of most requests."""
    if (
        memory.chunks
        and limits.activate_after_idle_s is not None
        and idle_s >= limits.activate_after_idle_s
    ):
        return False
    if memory.chunks and limits.activate_on_provider_change and has_provider_changed:
        return False
    pending_tokens, log_tokens = memory.pending_tokens, memory.log.tokens
    limits = limits.for_memory(log_tokens=log_tokens, pending_tokens=pending_tokens)
    return pending_tokens < min(
        limits.observe_from_tokens, limits.block_from_tokens
    ) and log_tokens < min(limits.reflect_from_tokens, limits.reflect_block_from_tokens)


def decide_after_reply(memory: Memory, limits: Limits, now: float = 0.0) -> Decision | None:
    """Return the next thing due in the background. The caller checks whether the thread's back-off
    allows it (`Failures`).

    `now`: unix seconds; without it the thread counts as busy.
    """
    most = limits.observe_from_tokens
    limits = limits.for_memory(log_tokens=memory.log.tokens, pending_tokens=memory.pending_tokens)
    return _background_observation(memory, limits, most, now) or reflection_due(memory, limits)


def chunks_to_activate(sizes: Sequence[int], pending_tokens: int, limits: Limits) -> int:
    """Return the number of chunks of these source sizes that leave the tail, oldest first. `sizes`
    is not empty; the arithmetic is that of docs/spec/behaviour.md#activate.

    The smallest prefix that reaches the target, unless it overshoots by too much or leaves too
    little raw; else the largest prefix below the target; else the first chunk.
    """
    target = max(0, pending_tokens - limits.keep_tokens)
    removed = list(accumulate(sizes))
    reaching = next((i + 1 for i, total in enumerate(removed) if total >= target), None)
    if reaching is not None:
        total = removed[reaching - 1]
        if (
            total - target <= MAX_OVERSHOOT_SHARE * limits.keep_tokens
            and pending_tokens - total >= min(MIN_RAW_TOKENS, limits.keep_tokens)
        ):
            return reaching
    below = sum(total < target for total in removed)
    return below or 1


def _due_activation(memory: Memory, limits: Limits, asked: RequestState) -> Activate | None:
    allowed = [c.source_tokens for c in memory.chunks if c.last <= asked.last_observable_seq]
    if not allowed:
        return None
    observable = observable_tokens(memory.tail)
    count = chunks_to_activate(allowed, observable, limits)
    if observable >= limits.observe_from_tokens:
        return Activate(count, "threshold")
    if limits.activate_after_idle_s is not None and asked.idle_s >= limits.activate_after_idle_s:
        return Activate(count, "idle")
    if limits.activate_on_provider_change and asked.has_provider_changed:
        return Activate(count, "provider")
    return None


def _skips_waiting(failures: Failures, limits: Limits, now: float) -> bool:
    """Return whether no request waits for this thread: it is in back-off or suspended
    (docs/spec/behaviour.md#wait). The background tries next, where there is one."""
    return failures.suspended or (
        failures.count > 0 and (limits.interval_tokens is not None or now < failures.retry_at)
    )


def _blocking_observation(
    memory: Memory, limits: Limits, asked: RequestState, most: int
) -> Observe | None:
    """`most`: tokens one observation reads, T as set. The background takes the rest of a backlog,
    where there is one."""
    observable = observable_tokens(memory.tail)
    if observable < limits.block_from_tokens or memory.chunks:
        return None
    marks = [m.mark for m in memory.tail if m.seq <= asked.last_observable_seq]
    room = max(
        min(observable - limits.keep_tokens, most if limits.interval_tokens else MAX_BATCH_TOKENS),
        1,
    )
    return _observe(
        memory,
        marks,
        blocks.find_safe_cut(marks, room, (limits.interval_tokens or room) // 2),
        wait=True,
    )


def _background_observation(
    memory: Memory, limits: Limits, most: int, now: float
) -> Observe | None:
    if limits.interval_tokens is None:
        return None
    fresh = [m for m in memory.tail if m.seq > memory.chunked_to]
    least = limits.interval_tokens // 2
    if sum_framed_tokens(fresh) < least:
        return None
    near = (
        observable_tokens(memory.tail)
        >= limits.observe_from_tokens - NEAR_THRESHOLD_INTERVALS * limits.interval_tokens
    )
    if observable_tokens(fresh) < (
        least if near or is_idle(memory, limits, now) else limits.interval_tokens
    ):
        return None
    marks = [m.mark for m in fresh]
    found = _observe(
        memory, marks, _extend_cut(marks, blocks.find_safe_cut(marks, most, least), least)
    )
    if found and limits.prices and not pays_back(memory, found.tokens, limits, limits.prices):
        return None
    return found


def observe_everything(memory: Memory, most: int) -> Observe | None:
    """Observe everything that can be observed and is not, up to `most` tokens: a thread's part of an
    observation of several threads."""
    marks = [m.mark for m in memory.tail if m.seq > memory.chunked_to]
    return _observe(memory, marks, blocks.find_safe_cut(marks, most, 0))


def waits_to_pay_back(memory: Memory, limits: Limits) -> bool:
    """Return whether due notes wait because they would cost more than they save (`economy:
    auto`)."""
    if (
        limits.prices is None or memory.scope == "resource"
    ):  # a resource's threads are observed together, and nothing waits
        return False
    return (
        decide_after_reply(memory, limits) is None
        and decide_after_reply(memory, dataclasses.replace(limits, prices=None)) is not None
    )


def is_idle(memory: Memory, limits: Limits, now: float) -> bool:
    """Return whether the thread has been idle for so long that half an interval is worth a chunk
    (`buffer_on_idle`)."""
    moment = idle_from(memory, limits)
    return moment is not None and now >= moment


def idle_from(memory: Memory, limits: Limits) -> float | None:
    """Return the moment from which the thread counts as idle; None: never."""
    if limits.buffer_after_idle_s is None or memory.turn_at is None:
        return None
    return memory.turn_at + limits.buffer_after_idle_s


def _extend_cut(marks: Sequence[Mark], count: int, least: int) -> int:
    """Move the cut on to the first closed end that yields `least` tokens: before a huge block there
    may be next to nothing."""
    total = list(accumulate(m.tokens + MESSAGE_FRAMING_TOKENS for m in marks))
    if not count or total[count - 1] >= least:
        return count
    return next((end + 1 for end in blocks.find_closed_ends(marks) if total[end] >= least), count)


def _observe(
    memory: Memory, marks: Sequence[Mark], count: int, wait: bool = False
) -> Observe | None:
    if not count:
        return None
    after, last = memory.chunked_to, marks[count - 1].seq
    return Observe(after, last, sum_framed_tokens(messages_between(memory, after, last)), wait)


def _blocking_reflection(memory: Memory, limits: Limits) -> Reflect | None:
    if (
        memory.log.tokens < limits.reflect_block_from_tokens
        or memory.log.unproductive_tokens == memory.log.tokens
    ):
        return None
    return _reflect(memory, limits, wait=True)


def reflection_due(memory: Memory, limits: Limits) -> Reflect | None:
    """Return the background reflection that is due."""
    size = memory.log.tokens
    if (
        limits.reflect_ahead_from_tokens is None
        or memory.log.reflection
        or size < limits.reflect_ahead_from_tokens
        or memory.log.unproductive_tokens == size
    ):
        return None
    if (
        any(entry.kind == "reflection" for entry in memory.log.entries)
        and size < limits.reflect_from_tokens * LATER_REFLECTION_SHARE
    ):
        return None
    return _reflect(memory, limits)


def _reflect(memory: Memory, limits: Limits, *, wait: bool = False) -> Reflect:
    stretch = condensing.choose_stretch(memory.log.entries, limits.reflect_from_tokens)
    return Reflect(stretch.count, condensing.acceptance_limit(stretch), wait, stretch.start)


def due_at(memory: Memory, limits: Limits, now: float) -> float | None:
    """Return the moment at which the background should look at this thread; None: not before its
    next turn.

    The background looks at a thread that shares its log together with the other threads of its
    resource (batches.py).
    """
    if memory.failures.suspended or memory.scope == "resource":
        return None
    idle = idle_from(memory, limits)
    moments = [now] if idle is None or idle <= now else [now, idle]
    due = next((moment for moment in moments if decide_after_reply(memory, limits, moment)), None)
    return None if due is None else max(due, memory.failures.retry_at)
