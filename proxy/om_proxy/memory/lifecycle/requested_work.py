"""Decide what memory work a person asks for, below the thresholds too
(docs/contributing/seeing.md#asked-for-work)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from om_proxy.memory.lifecycle import condensing
from om_proxy.memory.lifecycle.decisions import Observe, Reflect, observe_everything
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Memory


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
    """Return what to do for the wish now; None: nothing is left to do.

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
