"""Each fact adds to its numbers, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from om_proxy.common.reasons import Reason, Status
from om_proxy.memory.ledger import Account
from om_proxy.memory.model import Key
from om_proxy.memory.token_prices import Usage
from om_proxy.observability.facts import (
    Bypassed,
    CredentialRefused,
    ExtraFailed,
    Fact,
    Facts,
    Forgotten,
    LookUpsMade,
    MemoryCallEnded,
    MemoryWorkFailed,
    Observed,
    Reflected,
    RequestRefused,
    TurnEnded,
    TurnPriced,
    Uncommitted,
    UnreachedTurnEnded,
)
from om_proxy.observability.figures.fact_counter import MAX_CACHED_PLACES, FactCounter, find_cause
from om_proxy.observability.figures.label_values import LabelLimit, ModelLabels, ThreadLabels
from om_proxy.observability.figures.metrics import FAILURE_CAUSES
from om_proxy.observability.figures.series import MAGIC, NumberArray, Series, add_up
from om_proxy.settings.config import WatchedSettings, parse

KEY = Key("tenant", "ada", "kitchen")


class Counting:
    """A counter, and the sums that it made."""

    def __init__(self, *, has_threads: bool = False) -> None:
        self.series = Series(NumberArray())
        models = ModelLabels(lambda name: name if name in ("gpt-4o", "o3") else None, LabelLimit(9))
        threads = ThreadLabels(
            lambda key: f"<{key.thread}>",
            LabelLimit(9),
            has_resources=False,
            has_threads=has_threads,
        )
        self.counter = FactCounter(self.series, models, threads, WatchedSettings(parse("")))
        self.facts = Facts()
        self.counter.subscribe_to(self.facts)

    def count(self, *facts: Fact) -> dict[tuple[str, ...], tuple[float, ...]]:
        for fact in facts:
            self.facts.emit(fact)
        return self.nonzero()

    def nonzero(self) -> dict[tuple[str, ...], tuple[float, ...]]:
        sums = add_up([self.series.array.copy()])
        return {name: numbers for name, numbers in sums.items() if any(numbers)}

    def values(self, *facts: Fact) -> dict[tuple[str, ...], float]:
        """The counters alone, by name and label values."""
        return {
            (name[0], *name[2::2]): numbers[0]
            for name, numbers in self.count(*facts).items()
            if len(numbers) == 1
        }


def turn(**more: Any) -> TurnEnded:
    fields: dict[str, Any] = {
        "key": KEY,
        "status": 200,
        "memory": Status.APPLIED,
        "reason": None,
        "model": "gpt-4o",
        "tokens_received": 900,
        "tokens_sent": 300,
        "case": "extend",
        "end": "complete",
        "overhead_ms": 1.0,
        "total_ms": 80.0,
        "upstream": "openai",
        "first_byte_s": 0.3,
    }
    return TurnEnded(**(fields | more))


def call_ended(keys: tuple[Key, ...], **accounts: Account) -> MemoryCallEnded:
    return MemoryCallEnded(
        keys, "reflect", "o3", "answered", 3.0, 1, Usage(), accounts=tuple(accounts.items())
    )


def test_a_turn_is_counted() -> None:
    sums = Counting().count(turn(usage=Usage(250, 200, 0, 40)))
    assert sums[
        (
            "om_requests_total",
            "status",
            "applied",
            "reason",
            "",
            "upstream",
            "openai",
            "api",
            "chat",
            "client",
            "",
            "route",
            "",
        )
    ] == (1.0,)
    assert sums["om_overhead_seconds", "status", "applied"][:2] == (0.0, 1.0)
    assert sums["om_overhead_seconds", "status", "applied"][-1] == pytest.approx(0.001)
    assert sums["om_upstream_first_byte_seconds", "upstream", "openai"][3] == 1.0
    usage = {name[2]: numbers for name, numbers in sums.items() if name[0].startswith("om_usage")}
    assert usage == {"input": (250.0,), "cached": (200.0,), "output": (40.0,)}
    tokens = {name[2]: numbers for name, numbers in sums.items() if name[0].startswith("om_prompt")}
    assert tokens == {"received": (900.0,), "sent": (300.0,)}
    assert len(sums) == 8


def test_a_turn_without_memory_needs_no_model() -> None:
    """The price table is not read for it."""

    def fail(_: str) -> str | None:
        raise AssertionError("looked up")

    counting = Counting()
    counting.counter._models = ModelLabels(fail, LabelLimit(9))
    off = turn(
        memory=Status.OFF,
        reason=Reason.NO_THREAD,
        tokens_received=None,
        tokens_sent=None,
        key=None,
        first_byte_s=None,
        client="curl",
    )
    assert counting.values(off) == {
        ("om_requests_total", "off", "no-thread", "openai", "chat", "curl", ""): 1.0
    }


def test_turns_with_tokens_and_without() -> None:
    """A degraded turn may have a prompt of its own or not: neither counts in the other's place."""
    degraded = {"memory": Status.DEGRADED, "reason": Reason.STORAGE}
    values = Counting().values(
        turn(**degraded, tokens_received=None, tokens_sent=None),
        turn(**degraded),
        turn(**degraded, tokens_received=None, tokens_sent=None),
    )
    assert values[("om_requests_total", "degraded", "storage", "openai", "chat", "", "")] == 3.0
    assert values[("om_prompt_tokens_total", "sent", "gpt-4o")] == 300.0
    assert Counting().series.array.copy().startswith(MAGIC)


@pytest.mark.parametrize(
    ("fact", "values"),
    [
        (
            UnreachedTurnEnded(KEY, 200, "/v1/responses", "complete", 2.1, "responses", "codex"),
            {("om_requests_total", "off", "route", "", "responses", "codex", "/v1/responses"): 1.0},
        ),
        (
            UnreachedTurnEnded(KEY, 504, "/v1/responses", "om_upstream_timeout", 2.1, "responses"),
            {
                ("om_requests_total", "off", "route", "", "responses", "", "/v1/responses"): 1.0,
                ("om_failures_total", "upstream-timeout"): 1.0,
            },
        ),
        (
            RequestRefused(400, "om_bad_header", "messages", "curl"),
            {
                ("om_requests_total", "off", "refused", "", "messages", "curl", ""): 1.0,
                ("om_failures_total", "refused"): 1.0,
            },
        ),
        (CredentialRefused("admin"), {("om_credentials_refused_total", "admin"): 1.0}),
        (
            Bypassed(KEY, Reason.STORAGE, "StorageError", "store.py:7"),
            {("om_failures_total", "memory-bypassed"): 1.0},
        ),
        (
            ExtraFailed(KEY, "ledger", "KeyError", "ledger.py:7"),
            {("om_failures_total", "turn-extra"): 1.0},
        ),
        (Uncommitted(KEY, "KeyError"), {("om_failures_total", "turn-lost"): 1.0}),
        (Uncommitted(KEY, "SpoolFull", turns=3), {("om_failures_total", "turn-lost"): 3.0}),
        (
            MemoryWorkFailed(KEY, "reflect", "om_model", 1, ""),
            {("om_failures_total", "reflect"): 1.0},
        ),
        (Observed(KEY, 900, 90, True, "o3"), {("om_observations_created_total", "o3"): 1.0}),
        (Observed(KEY, 900, 90, False, "o3"), {}),
        (Observed(KEY, 0, 90, True, None), {("om_observations_created_total", "other"): 1.0}),
        (Reflected(KEY, 900, 90, "mine"), {("om_reflections_created_total", "other"): 1.0}),
        (
            TurnPriced(KEY, "gpt-4o", "full", Account(cost=200, baseline_cost=500)),
            {
                ("om_cost_baseline_total", "gpt-4o", "full"): 500.0,
                ("om_cost_actual_total", "gpt-4o", "full"): 200.0,
            },
        ),
        (
            TurnPriced(KEY, "mine", "partial", Account(cost=200, baseline_cost=500)),
            {
                ("om_cost_baseline_total", "other", "partial"): 200.0,
                ("om_cost_actual_total", "other", "partial"): 200.0,
            },
        ),
        (
            call_ended((KEY,), o3=Account(1, 9, 4, 2, 3, 70), mine=Account(1, output=1, cost=5)),
            {
                ("om_usage_tokens_total", "output", "other", "reflector"): 1.0,
                ("om_reflector_cost_total", "other", "full"): 5.0,
                ("om_usage_tokens_total", "input", "o3", "reflector"): 15.0,
                ("om_usage_tokens_total", "cached", "o3", "reflector"): 4.0,
                ("om_usage_tokens_total", "cache_write", "o3", "reflector"): 2.0,
                ("om_usage_tokens_total", "output", "o3", "reflector"): 3.0,
                ("om_reflector_cost_total", "o3", "full"): 70.0,
            },
        ),
        (Forgotten(KEY, 3, "gone"), {}),
    ],
)
def test_each_fact_adds_to_its_own_counters(
    fact: Fact, values: dict[tuple[str, ...], float]
) -> None:
    assert Counting().values(fact) == values


def test_calls_and_ratios_are_histograms() -> None:
    sums = Counting().count(
        MemoryCallEnded((KEY,), "observe", "o3", "failed", 3.0, 0, Usage()),
        Observed(KEY, 1_000, 100, True, "o3"),
    )
    call = sums["om_observer_duration_seconds", "model", "o3", "outcome", "failed"]
    assert (call[3], call[-1]) == (1.0, 3.0)
    ratio = sums["om_compression_ratio", "kind", "observation"]
    assert (ratio[3], ratio[-1]) == (1.0, pytest.approx(0.1))


@pytest.mark.parametrize(
    ("status", "end", "cause"),
    [
        (200, "complete", None),
        (404, "complete", "upstream-4xx"),
        (429, "complete", "upstream-429"),
        (500, "complete", "upstream-5xx"),
        (200, "truncated", "reply-truncated"),
        (200, "disconnected", "client-left"),
        (499, "disconnected", "client-left"),
        (502, "om_upstream_unreachable", "upstream-unreachable"),
        (503, "om_overloaded", "overloaded"),
        (400, "om_two_credentials", "refused"),
        (500, "om_internal", "internal"),
    ],
)
def test_causes_are_a_closed_list(status: int, end: str, cause: str | None) -> None:
    assert find_cause(status, end) == cause
    assert cause is None or cause in FAILURE_CAUSES


def test_labels_of_threads() -> None:
    """A call for several threads belongs to none of them."""
    other = KEY._replace(thread="garden")
    call = call_ended((KEY, other), o3=Account(input=5, cost=7))
    sums = Counting(has_threads=True).count(
        turn(usage=Usage(3)), turn(key=other), turn(key=None), call
    )
    received = {
        name[5:]: numbers[0]
        for name, numbers in sums.items()
        if name[:3] == ("om_prompt_tokens_total", "kind", "received")
    }
    assert received == {("thread", "<kitchen>"): 900, ("thread", "<garden>"): 900, (): 900}
    assert sums["om_reflector_cost_total", "model", "o3", "history", "full"] == (7.0,)
    assert {name for name in sums if "<kitchen>" in name and "om_requests_total" in name} == set()


def test_made_up_models_leave_no_place_behind() -> None:
    counting = Counting()
    rows = len(counting.series._indices)
    for number in range(2 * MAX_CACHED_PLACES):
        counting.facts.emit(turn(model=f"made-up-{number}", usage=Usage(1)))
    assert len(counting.counter._turns) <= MAX_CACHED_PLACES
    assert len(counting.series._indices) < rows + 12
    assert counting.values()[("om_usage_tokens_total", "input", "other", "actor")] == (
        2 * MAX_CACHED_PLACES
    )


def test_look_ups() -> None:
    """Each look-up of a step counts by itself, its time once; the rounds count with their turn."""
    counting = Counting()
    sums = counting.count(
        LookUpsMade(KEY, (("search", "found"), ("search", "found"), ("threads", "error")), 0.02),
        turn(later_rounds=2, recall_steps=1),
    )
    assert sums["om_recall_total", "mode", "search", "outcome", "found"] == (2.0,)
    assert sums["om_recall_total", "mode", "threads", "outcome", "error"] == (1.0,)
    assert sum(sums[("om_recall_seconds",)][:-1]) == 1.0
    assert sums[("om_recall_rounds_total",)] == (2.0,)
