"""What a person asks for is decided below the thresholds too."""

from __future__ import annotations

from om_proxy.memory.lifecycle import edits
from om_proxy.memory.lifecycle.decisions import (
    Observe,
    ObserveNow,
    Reflect,
    ReflectNow,
    decide_wish,
)
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Memory
from tests.memory.building import chat, chunked, memory, transcript, with_log

LIMITS = Limits(observe_from_tokens=1_000)


def test_what_can_be_observed_is_observed() -> None:
    """Behind the newest chunk, up to T at a time."""
    assert decide_wish(memory(chat(2, 100)), ObserveNow(), LIMITS) == Observe(0, 4, 400, wait=True)
    later = decide_wish(chunked(8, 100, 4), ObserveNow(all=True), LIMITS)
    assert later == Observe(4, 14, 1_000, wait=True)


def test_nothing_is_left() -> None:
    """An open tool call is no place to cut."""
    assert decide_wish(memory(()), ObserveNow(), LIMITS) is None
    assert decide_wish(chunked(2, 100, 4), ObserveNow(), LIMITS) is None
    open_call = memory(transcript(("assistant", 50, ("call",), None)))
    assert decide_wish(open_call, ObserveNow(), LIMITS) is None


def test_the_whole_log_is_condensed() -> None:
    """Whatever its size; the instruction goes to the reflector."""
    log = with_log(memory(chat(1, 50)), 100, 300)
    assert decide_wish(log, ReflectNow("Keep names."), LIMITS) == Reflect(
        2, 281, wait=True, instruction="Keep names."
    )


def test_there_is_nothing_to_condense() -> None:
    """Neither without notes nor without words."""
    assert decide_wish(memory(chat(1, 50)), ReflectNow(), LIMITS) is None
    gone: Memory | None = edits.withdraw_entry(with_log(memory(chat(1, 50)), 100), 1, 9.0)
    assert gone is not None
    assert decide_wish(gone, ReflectNow(), LIMITS) is None
