"""The word of a receipt for notes that a failing memory model has not made."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from om_proxy.memory import lifecycle
from om_proxy.memory.lifecycle import Asked, Observe, Reflect
from om_proxy.memory.model import Memory, Trouble
from om_proxy.memory.thresholds import Limits


def explain_failure(
    memory: Memory, limits: Limits, asked: Asked, *, waited: bool
) -> Literal["observer-late", "observer-failing"]:
    """Tell a back-off that spares this request its wait from every other trouble. `memory.trouble` counts failures.

    - `observer-late`: the request would wait for notes, but its thread is in back-off, so it goes out raw at once.
    - `observer-failing`: the thread is parked, its back-off is over, the request has just waited for the call that failed, or notes
      are not due so urgently that a request would wait for them.
    """
    trouble = memory.trouble
    if waited or trouble.parked or asked.now >= trouble.until:
        return "observer-failing"
    due = lifecycle.before_forwarding(replace(memory, trouble=Trouble()), limits, asked)
    return "observer-late" if isinstance(due, Observe | Reflect) else "observer-failing"
