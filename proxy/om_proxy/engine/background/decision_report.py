"""Report each decision as a fact, where `telemetry.debug_events` asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, assert_never

from om_proxy.memory.lifecycle.batches import ActivateIdle, ObserveBatch
from om_proxy.memory.lifecycle.decisions import Activate, Decision, Observe, Reflect, Swap
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Decided, DecisionPlace, Facts

Work: TypeAlias = Decision | ObserveBatch | ActivateIdle

WORDS: Mapping[type[Work], str] = {
    Activate: "activate",
    ActivateIdle: "activate",
    Swap: "swap",
    Observe: "observe",
    ObserveBatch: "observe",
    Reflect: "reflect",
}


def report_decision(facts: Facts, key: Key, place: DecisionPlace, decision: Work | None) -> None:
    """Emit Decided. Every request passes here, so nothing is made of the decision while nobody
    asks for it."""
    if facts.tells_decisions:
        facts.emit(describe_decision(key, place, decision))


def describe_decision(key: Key, place: DecisionPlace, decision: Work | None) -> Decided:
    if decision is None:
        return Decided(key, place, "nothing", {})
    return Decided(key, place, WORDS[type(decision)], _list_numbers(decision))


def _list_numbers(decision: Work) -> Mapping[str, int | str]:
    """List the decision's own numbers and words. A person's instruction is left out: it is text."""
    match decision:
        case Swap():
            return {}
        case ObserveBatch(batches=batches):
            return {"calls": len(batches), "threads": sum(map(len, batches))}
        case ActivateIdle(keys=keys, why=why):
            return {"threads": len(keys), "why": why}
        case Activate(count=count, why=why):
            return {"count": count, "why": why}
        case Observe(after=after, last=last, tokens=tokens, wait=wait):
            return {"after": after, "last": last, "tokens": tokens, "wait": wait}
        case Reflect(entries=entries, accept_below=accept_below, wait=wait):
            return {"entries": entries, "accept_below": accept_below, "wait": wait}
        case _:
            assert_never(decision)
