"""The rules of observing and reflecting: what is due for a memory, as functions of plain values.

Two rules of the room:

1. Every rule that decides or changes what is observed, active or reflected is in this room, as
   a function of plain values. Decisions are here, the changes of a memory in transitions.py. The
   code that performs a decision (engine/turns/due_notes.py, engine/background/) only fetches, calls
   models and commits.
2. Finished work is recognised by value. A chunk names the range and the chain it was made from, a
   reflection the entries and the generation. A transition whose premise no longer holds returns the
   memory unchanged. No flag has to be cleared.

Theory of operation. The tail grows with every turn. After a reply, once an *interval* of new
messages has gathered, the observer turns them into a chunk (`decide_after_reply` → Observe). When
the tail reaches the threshold T, the oldest chunks become log entries and their messages leave the
prompt (`decide_before_forwarding` → Activate). That needs no model call and breaks the provider's
prompt cache once. If that does not suffice, a request waits for an observation (Observe with
`wait`). After a pause that cache is cold anyway: then chunks may become active below T, once, and
half an interval is worth a chunk. The log grows likewise: from half of R on, a reflection of a
stretch of its entries is made in the background and swapped in at R. Later reflections are made
from 0.9 R on. condensing.py chooses the entries and how short they become.

    tail   0 ────────── interval ── … ── T (activate) ── block_from (wait)
    log    0 ── reflect_ahead_from (background) ── R (swap) ── reflect_block_from (wait)

Numbers and their meaning: thresholds.py; the contract: docs/contributing/behaviour.md#observe and
docs/contributing/behaviour.md#reflect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from msgspec.structs import replace

from om_proxy.common.reasons import Reason
from om_proxy.memory import blocks
from om_proxy.memory.lifecycle import condensing
from om_proxy.memory.lifecycle.economy import has_moved, pays_back
from om_proxy.memory.lifecycle.log_limit import count_excess, count_kept_entries
from om_proxy.memory.lifecycle.observable import (
    observable_tokens,
    separates_results,
    unobserved_tail,
)
from om_proxy.memory.lifecycle.thresholds import (
    MAX_OVERSHOOT_SHARE,
    MIN_RAW_TOKENS,
    NEAR_THRESHOLD_INTERVALS,
    Limits,
)
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import (
    MESSAGE_FRAMING_TOKENS,
    Failures,
    Mark,
    Memory,
)

# of R: once the log holds a reflection, the next one is made from here on. An earlier one would
# have to take older notes, because there are too few new ones.
LATER_REFLECTION_SHARE = 0.9
# of one observation that a request waits for, if nothing else limits it; common windows hold them
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
    """The command to observe the live messages with `after < seq <= last`."""

    after: int
    last: int
    tokens: int
    wait: bool = False  # the request waits for the notes, within its deadline


@dataclass(frozen=True, slots=True)
class Reflect:
    """The command to condense `entries` entries of the log, from index `start` on."""

    entries: int
    accept_below: int  # tokens; a longer reflection is refused
    wait: bool = False  # the request waits for the reflection, within its deadline
    start: int = 0
    instruction: str | None = None  # of the person who asked for it, beside the configured one


Decision = Activate | Swap | Observe | Reflect


@dataclass(frozen=True, slots=True)
class RequestState:
    """The part of a request that decisions need."""

    # of the newest message that may leave its prompt; what the request itself asks comes after it
    last_observable_seq: int
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
    return now - memory.turn_at, has_moved(memory.model, model)


def decide_before_forwarding(
    memory: Memory, limits: Limits, asked: RequestState, *, waited: bool = False
) -> Decision | None:
    """Return the next thing due before this request's prompt is built; ask again after performing
    it.

    `memory` is the projected one, with the request's own messages in its tail. Call
    `is_nothing_due` first: it is cheaper. `waited`: the request has waited already.
    """
    max_batch_tokens = limits.observe_from_tokens
    limits = limits.for_memory(log_tokens=memory.log.tokens, pending_tokens=memory.pending_tokens)
    if activation := _due_activation(memory, limits, asked):
        return activation
    if memory.log.reflection and (
        memory.log.tokens >= limits.reflect_from_tokens or _has_many_entries(memory, limits)
    ):
        return Swap()
    if waited or _skips_waiting(memory.failures, limits, asked.now):
        return None
    return _blocking_observation(memory, limits, asked, max_batch_tokens) or _blocking_reflection(
        memory, limits
    )


def _has_many_entries(memory: Memory, limits: Limits) -> bool:
    most = limits.max_log_entries
    return most is not None and memory.log.count_with_words() > most


def is_nothing_due(
    memory: Memory, limits: Limits, *, idle_s: float, has_provider_changed: bool
) -> bool:
    """Return whether certainly nothing is due before forwarding, as for most requests. Looks at no
    message."""
    is_idle_long = (
        limits.activate_after_idle_s is not None and idle_s >= limits.activate_after_idle_s
    )
    if memory.chunks and is_idle_long:
        return False
    if memory.chunks and limits.activate_on_provider_change and has_provider_changed:
        return False
    if _has_many_entries(memory, limits):
        return False
    pending_tokens = memory.pending_tokens
    log_tokens = memory.log.tokens
    limits = limits.for_memory(log_tokens=log_tokens, pending_tokens=pending_tokens)
    return pending_tokens < min(
        limits.observe_from_tokens, limits.block_from_tokens
    ) and log_tokens < min(limits.reflect_from_tokens, limits.reflect_block_from_tokens)


def decide_after_reply(memory: Memory, limits: Limits, now: float = 0.0) -> Decision | None:
    """Return the next thing due in the background. The caller checks whether the thread's back-off
    allows it (`Failures`).

    `now`: unix seconds; without it the thread counts as busy.
    """
    max_batch_tokens = limits.observe_from_tokens
    limits = limits.for_memory(log_tokens=memory.log.tokens, pending_tokens=memory.pending_tokens)
    return _background_observation(memory, limits, max_batch_tokens, now) or reflection_due(
        memory, limits
    )


def chunks_to_activate(sizes: Sequence[int], pending_tokens: int, limits: Limits) -> int:
    """Return the number of chunks that leave the tail, oldest first
    (docs/contributing/behaviour.md#activate).

    `sizes`: the chunks' source tokens, not empty. The smallest prefix that reaches the target is
    taken, unless it overshoots by too much or leaves too few tokens raw; else the largest prefix
    below the target; else the first chunk.
    """
    target = max(0, pending_tokens - limits.keep_tokens)
    removed_tokens = list(accumulate(sizes))
    reaching = next((i for i, total in enumerate(removed_tokens, 1) if total >= target), None)
    if reaching is not None:
        total = removed_tokens[reaching - 1]
        leaves_enough = pending_tokens - total >= min(MIN_RAW_TOKENS, limits.keep_tokens)
        if total - target <= MAX_OVERSHOOT_SHARE * limits.keep_tokens and leaves_enough:
            return reaching
    below = sum(total < target for total in removed_tokens)
    return below or 1


def _due_activation(memory: Memory, limits: Limits, asked: RequestState) -> Activate | None:
    chunks = [chunk for chunk in memory.chunks if chunk.last <= asked.last_observable_seq]
    if not chunks:
        return None
    observable = observable_tokens(memory.tail)
    if observable >= limits.observe_from_tokens:
        why = "threshold"
    elif limits.activate_after_idle_s is not None and asked.idle_s >= limits.activate_after_idle_s:
        why = "idle"
    elif limits.activate_on_provider_change and asked.has_provider_changed:
        why = "provider"
    else:
        return None
    wanted = chunks_to_activate([chunk.source_tokens for chunk in chunks], observable, limits)
    # a prefix that keeps calls with their results: the next longer one, else the next shorter one
    counts = (*range(wanted, len(chunks) + 1), *range(wanted - 1, 0, -1))
    fitting = (n for n in counts if not separates_results(memory, chunks[n - 1].last))
    count = next(fitting, None)
    return None if count is None else Activate(count, why)


def _skips_waiting(failures: Failures, limits: Limits, now: float) -> bool:
    """Return whether no request waits for this thread: it is in back-off or suspended
    (docs/contributing/behaviour.md#wait). With buffering, the background tries next."""
    if failures.suspended:
        return True
    return failures.count > 0 and (limits.interval_tokens is not None or now < failures.retry_at)


def _blocking_observation(
    memory: Memory, limits: Limits, asked: RequestState, max_batch_tokens: int
) -> Observe | None:
    """Return the observation that the request waits for.

    `max_batch_tokens`: T as set. With buffering, the background takes the rest of a backlog."""
    observable = observable_tokens(memory.tail)
    if observable < limits.block_from_tokens or memory.chunks:
        return None
    marks = [m.mark for m in memory.tail if m.seq <= asked.last_observable_seq]
    most = max_batch_tokens if limits.interval_tokens else MAX_BATCH_TOKENS
    room = max(min(observable - limits.keep_tokens, most), 1)
    least = (limits.interval_tokens or room) // 2
    return observe_marks(memory, marks, blocks.find_safe_cut(marks, room, least), wait=True)


def _background_observation(
    memory: Memory, limits: Limits, max_batch_tokens: int, now: float
) -> Observe | None:
    if limits.interval_tokens is None:
        return None
    least = limits.interval_tokens // 2
    if not _has_gathered(memory, least):
        return None
    fresh = unobserved_tail(memory)
    near_tokens = limits.observe_from_tokens - NEAR_THRESHOLD_INTERVALS * limits.interval_tokens
    is_near = observable_tokens(memory.tail) >= near_tokens
    needed = least if is_near or is_idle(memory, limits, now) else limits.interval_tokens
    if observable_tokens(fresh) < needed:
        return None
    marks = [m.mark for m in fresh]
    if not memory.chunks and memory.pending_tokens >= limits.observe_from_tokens:
        # the next request activates this one chunk, which has to leave raw what it keeps
        count = _cut_for_activation(marks, memory.pending_tokens, max_batch_tokens, least, limits)
    else:
        count = _extend_cut(marks, blocks.find_safe_cut(marks, max_batch_tokens, least), least)
    batch = observe_marks(memory, marks, count)
    if batch and limits.prices and not pays_back(memory, batch.tokens, limits, limits.prices):
        return None
    return batch


def _has_gathered(memory: Memory, least: int) -> bool:
    """Return whether so many tokens follow the newest chunk: after most turns, not. Looks at no
    message."""
    tail = MessageList.of(memory.tail)
    return tail.framed_tokens_between(memory.chunked_to + 1, memory.end) >= least


def _cut_for_activation(
    marks: Sequence[Mark], pending: int, max_batch_tokens: int, least: int, limits: Limits
) -> int:
    """Cut where an activation would, which keeps about `keep_tokens` of the `pending` ones raw: at
    the first closed end that leaves no more, unless that leaves next to nothing."""
    target = min(pending - limits.keep_tokens, max_batch_tokens)
    count = _extend_cut(marks, blocks.find_safe_cut(marks, target, least), least)
    reaching = _extend_cut(marks, count, target)
    left = pending - sum(m.tokens + MESSAGE_FRAMING_TOKENS for m in marks[:reaching])
    return reaching if left >= min(MIN_RAW_TOKENS, limits.keep_tokens) else count


def observe_everything(memory: Memory, most: int) -> Observe | None:
    """Return the observation of everything that can be observed and is not, up to `most` tokens: a
    thread's part of an observation of several threads, or what a person asks for."""
    marks = [m.mark for m in unobserved_tail(memory)]
    return observe_marks(memory, marks, blocks.find_safe_cut(marks, most, 0))


def waits_to_pay_back(memory: Memory, limits: Limits) -> bool:
    """Return whether due notes wait because they would cost more than they save (`economy:
    auto`)."""
    # a resource's threads are observed together, and nothing waits
    if limits.prices is None or memory.scope == "resource":
        return False
    fitted = limits.for_memory(log_tokens=memory.log.tokens, pending_tokens=memory.pending_tokens)
    if fitted.interval_tokens is None or not _has_gathered(memory, fitted.interval_tokens // 2):
        return False
    return (
        decide_after_reply(memory, limits) is None
        and decide_after_reply(memory, dataclasses.replace(limits, prices=None)) is not None
    )


def is_idle(memory: Memory, limits: Limits, now: float) -> bool:
    """Return whether the thread has been idle for so long that half an interval is worth a chunk
    (`buffer_on_idle`)."""
    idle_at = idle_from(memory, limits)
    return idle_at is not None and now >= idle_at


def idle_from(memory: Memory, limits: Limits) -> float | None:
    """Return the unix seconds from which the thread counts as idle; None: never."""
    if limits.buffer_after_idle_s is None or memory.turn_at is None:
        return None
    return memory.turn_at + limits.buffer_after_idle_s


def _extend_cut(marks: Sequence[Mark], count: int, least: int) -> int:
    """Move the cut on to the first closed end that yields `least` tokens: before a huge block there
    may be next to nothing."""
    totals = list(accumulate(m.tokens + MESSAGE_FRAMING_TOKENS for m in marks))
    if not count or totals[count - 1] >= least:
        return count
    return next((end + 1 for end in blocks.find_closed_ends(marks) if totals[end] >= least), count)


def observe_marks(
    memory: Memory, marks: Sequence[Mark], count: int, wait: bool = False
) -> Observe | None:
    """Return the observation of the first `count` of these messages, which follow the newest chunk;
    None for none."""
    if not count:
        return None
    after, last = memory.chunked_to, marks[count - 1].seq
    tokens = MessageList.of(memory.tail).framed_tokens_between(after + 1, last)
    return Observe(after, last, tokens, wait)


def _blocking_reflection(memory: Memory, limits: Limits) -> Reflect | None:
    if memory.log.unproductive_tokens == memory.log.tokens:
        return None
    # without buffering, nothing else makes fewer entries of a log
    excess_entries = (
        0 if limits.reflect_ahead_from_tokens else count_excess(memory.log, limits.max_log_entries)
    )
    if memory.log.tokens < limits.reflect_block_from_tokens and not excess_entries:
        return None
    return _reflect(memory, limits, wait=True)


def reflection_due(memory: Memory, limits: Limits) -> Reflect | None:
    """Return the reflection that is due in the background."""
    size = memory.log.tokens
    if memory.log.reflection or memory.log.unproductive_tokens == size:
        return None
    if limits.reflect_ahead_from_tokens is None:
        return None
    if count_excess(memory.log, limits.max_log_entries):
        return _reflect(memory, limits)
    if size < limits.reflect_ahead_from_tokens:
        return None
    holds_reflection = any(entry.kind == "reflection" for entry in memory.log.entries)
    if holds_reflection and size < limits.reflect_from_tokens * LATER_REFLECTION_SHARE:
        return None
    return _reflect(memory, limits)


def _reflect(memory: Memory, limits: Limits, *, wait: bool = False) -> Reflect:
    excess_entries = count_excess(memory.log, limits.max_log_entries)
    if excess_entries and limits.max_log_entries:
        excess_entries += limits.max_log_entries - count_kept_entries(limits.max_log_entries)
    stretch = condensing.choose_stretch(
        memory.log.entries, limits.reflect_from_tokens, excess_entries
    )
    return Reflect(stretch.count, condensing.acceptance_limit(stretch), wait, stretch.start)


def due_at(memory: Memory, limits: Limits, now: float) -> float | None:
    """Return the unix seconds at which the background should look at this thread; None: not before
    its next turn.

    A thread that shares its log is looked at with the other threads of its resource (batches.py).
    """
    if memory.failures.suspended or memory.scope == "resource":
        return None
    idle_at = idle_from(memory, limits)
    moments = [now] if idle_at is None or idle_at <= now else [now, idle_at]
    first_at = next((at for at in moments if decide_after_reply(memory, limits, at)), None)
    return None if first_at is None else max(first_at, memory.failures.retry_at)


@dataclass(frozen=True, slots=True)
class ObserveNow:
    """The wish to have observed what can be: one observation, or all of them (`all`)."""

    all: bool = False


@dataclass(frozen=True, slots=True)
class ReflectNow:
    """The wish to have the whole log condensed. `instruction`: words for the reflector beside those
    of the configuration."""

    instruction: str | None = None


Wish = ObserveNow | ReflectNow


def decide_wish(memory: Memory, wish: Wish, limits: Limits) -> Observe | Reflect | None:
    """Return what to do for the wish now, below the thresholds too; None: nothing is left to do
    (docs/contributing/seeing.md#asked-for-work).

    `memory`: the thread; for ReflectNow, the memory that holds the log.
    """
    if isinstance(wish, ReflectNow):
        return _reflect_log(memory, wish)
    batch = observe_everything(memory, limits.observe_from_tokens)
    return dataclasses.replace(batch, wait=True) if batch else None


def _reflect_log(memory: Memory, wish: ReflectNow) -> Reflect | None:
    entries = memory.log.entries
    if not memory.log.tokens:
        return None
    accept_below = condensing.acceptance_limit(condensing.take_whole_log(entries))
    return Reflect(len(entries), accept_below, wait=True, instruction=wish.instruction)


def explain_failure(memory: Memory, limits: Limits, asked: RequestState, *, waited: bool) -> Reason:
    """Return the reason for a receipt without notes. `memory.failures` counts at least one failure.

    - `observer-late`: the request would wait for notes, but its thread is in back-off, so it goes
      out raw at once.
    - `observer-failing`: the thread is suspended, its back-off is over, the request has just waited
      for the call that failed, or the request would not wait for notes yet.
    """
    failures = memory.failures
    if waited or failures.suspended or asked.now >= failures.retry_at:
        return Reason.OBSERVER_FAILING
    due = decide_before_forwarding(replace(memory, failures=Failures()), limits, asked)
    return Reason.OBSERVER_LATE if isinstance(due, Observe | Reflect) else Reason.OBSERVER_FAILING
