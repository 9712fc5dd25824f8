"""Choose the receipt's reason when a failing memory model has made no notes."""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.common.reasons import Reason
from om_proxy.memory.lifecycle import decisions
from om_proxy.memory.lifecycle.decisions import Observe, Reflect, RequestState
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Failures, Memory


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
    due = decisions.decide_before_forwarding(replace(memory, failures=Failures()), limits, asked)
    return Reason.OBSERVER_LATE if isinstance(due, Observe | Reflect) else Reason.OBSERVER_FAILING
