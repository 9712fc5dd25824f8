"""What memory would have cost on recorded conversations, and what they cost without it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from os import cpu_count
from typing import Any

from om_proxy.agents.models import Price, find_price
from om_proxy.proof.billing import (
    ANTHROPIC,
    ANTHROPIC_HOUR,
    OPENAI,
    BilledTokens,
    bill_calls,
    price_in_dollars,
    sum_tokens,
)
from om_proxy.proof.conversation import Call, Conversation, Message
from om_proxy.proof.needed import NeededLater
from om_proxy.proof.playing import (
    MessageWriter,
    Meter,
    Outcome,
    Play,
    Rates,
    Subject,
    count_output,
    count_tokens,
    is_compacted,
    keep_thresholds,
    list_full_prompts,
    list_main_calls,
    play,
)

# Tokens of source for one of notes. Measured: our own notes, November 2026. High: the recorded coding
# session as a whole.
LOW, MEASURED, HIGH = Rates("low", 3, 3), Rates("measured", 2.8, 18), Rates("high", 18, 18)
RATES = (MEASURED, LOW, HIGH)
DEFAULT_ACTOR = "gpt-5.4"
# gets the number of plays that ended, and of all
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Bill:
    """Tokens and, where prices are known, dollars."""

    tokens: BilledTokens
    dollars: float | None

    def __add__(self, other: Bill) -> Bill:
        both = self.dollars is not None and other.dollars is not None
        dollars = (self.dollars or 0.0) + (other.dollars or 0.0) if both else None
        return Bill(self.tokens + other.tokens, dollars)


@dataclass(frozen=True, slots=True)
class ModelNotes:
    """What came of notes that a model wrote."""

    calls: int
    refused_calls: int
    source_tokens: int  # of the messages that were shown
    tokens: int  # of the notes on them
    needed: NeededLater


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one conversation."""

    subject: Subject
    recorded: Bill | None  # by the provider's own usage
    as_sent: Bill  # by our model of the cache
    never_compacted: Bill | None  # None: the client compacted nothing
    with_memory: Mapping[str, Mapping[str, Bill]]  # by memory model and rates
    degraded_calls: int
    model_notes: ModelNotes | None = None  # None: a script wrote the notes

    @property
    def ratios(self) -> dict[str, float]:
        """The measured cost with each memory model, over the cost without memory."""
        return {
            name: compute_ratio(bills[MEASURED.name], self.as_sent)
            for name, bills in self.with_memory.items()
        }

    @property
    def default_ratio(self) -> float:
        return next(iter(self.ratios.values()))


def compute_ratio(bill: Bill, base: Bill) -> float:
    """Return the ratio of dollars; of prompt tokens, where no price is known."""
    if bill.dollars is None or not base.dollars:
        return bill.tokens.prompt / max(base.tokens.prompt, 1)
    return bill.dollars / base.dollars


# ── how a conversation is billed ──────────────────────────────────────────────────────────────────


def examine(
    conversation: Conversation,
    actor: str | None = None,
    price: Price | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Subject | None:
    """Find out how to bill the conversation; None if it has no call with a reply. Without an `actor`
    the recorded one counts, without a `price` the list price."""
    calls = list_main_calls(conversation)
    if not calls:
        return None
    recorded = next((call.model for call in reversed(calls) if call.model), DEFAULT_ACTOR)
    actor = actor or recorded
    price = price or find_price(actor)
    has_usage = all(call.usage is not None for call in calls)
    is_hourly = any(call.usage and call.usage.hour_tokens for call in calls)
    rules = OPENAI
    if "claude" in actor:
        rules = ANTHROPIC_HOUR if is_hourly else ANTHROPIC
    if price is not None and is_hourly and rules is ANTHROPIC_HOUR:
        price = replace(price, cache_write=2 * price.input)
    return Subject(
        conversation,
        calls,
        actor,
        price,
        fit_meter(calls) if has_usage else Meter(),
        rules,
        list_lost(calls) if has_usage else frozenset(),
        has_usage,
        keep_thresholds(settings or {}),
    )


def fit_meter(calls: Sequence[Call]) -> Meter:
    """Fit a line through the first call: what the provider counted, by what we count."""
    writer = MessageWriter()
    sizes = [sum(map(count_tokens, writer.write(call.sent))) for call in calls]
    counted = [call.usage.input_tokens if call.usage else 0 for call in calls]
    grown = [(x - sizes[0], y - counted[0]) for x, y in zip(sizes, counted, strict=True)]
    squares = sum(x * x for x, _ in grown)
    scale = sum(x * y for x, y in grown) / squares if squares else 1.0
    return Meter(scale, round(counted[0] - scale * sizes[0]))


def list_lost(calls: Sequence[Call]) -> frozenset[int]:
    """Return the calls that found nothing in the cache. The reason is not recorded, so they find
    nothing with memory either."""
    return frozenset(
        n for n, call in enumerate(calls) if n and call.usage and not call.usage.cached_tokens
    )


# ── bills ─────────────────────────────────────────────────────────────────────────────────────────


def bill_prompts(subject: Subject, prompts: Sequence[Sequence[Message]]) -> Bill:
    """Bill the prompts, one for each call, by our model of the cache."""
    writer = MessageWriter()
    sent = [
        subject.meter.measure(
            call.asked_at, writer.write(prompt), count_output(call, subject.meter)
        )
        for call, prompt in zip(subject.calls, prompts, strict=True)
    ]
    return price_bill(sum_tokens(bill_calls(sent, subject.rules, subject.lost)), subject.price)


def bill_recorded(subject: Subject) -> Bill | None:
    """Bill what the provider reported; None if it did not report every call."""
    if not subject.has_usage:
        return None
    used = [call.usage for call in subject.calls if call.usage]
    tokens = sum_tokens(
        BilledTokens(
            read=usage.cached_tokens,
            written=usage.written_tokens,
            fresh=usage.input_tokens - usage.cached_tokens - usage.written_tokens,
            output=usage.output_tokens,
        )
        for usage in used
    )
    return price_bill(tokens, subject.price) + bill_compactions(subject)


def bill_compactions(subject: Subject) -> Bill:
    """Bill the calls by which the client shortened the conversation, as uncached."""
    used = [c.usage for c in subject.conversation.calls if c.kind == "compaction" and c.usage]
    tokens = sum_tokens(
        BilledTokens(fresh=usage.input_tokens, output=usage.output_tokens) for usage in used
    )
    return price_bill(tokens, subject.price)


def bill_outcome(outcome: Outcome, subject: Subject, memory_model: str) -> Bill:
    """Bill the actor's calls and the memory model's, each at its own price."""
    own_price = subject.price if memory_model == subject.actor else find_price(memory_model)
    actor, memory = price_bill(outcome.actor, subject.price), price_bill(outcome.memory, own_price)
    return actor + memory


def price_bill(tokens: BilledTokens, price: Price | None) -> Bill:
    return Bill(tokens, None if price is None else price_in_dollars(tokens, price))


# ── playing ───────────────────────────────────────────────────────────────────────────────────────


def list_plays(subject: Subject) -> Iterator[Play]:
    """Yield what is played of a conversation: with each memory model, notes of each length."""
    for model in subject.memory_models.values():
        for rates in RATES:
            yield Play(subject, model, rates)


def run_play(task: Play) -> Outcome:
    """Play in this process; an entry point of worker processes."""
    return asyncio.run(play(task))


def replay(subjects: Sequence[Subject], on_progress: Progress | None = None) -> list[Result]:
    """Play all conversations and bill them. Those that memory makes dearer come first."""
    plays = [task for subject in subjects for task in list_plays(subject)]
    outcomes = iter(run_plays(plays, on_progress))
    return sort_results([_conclude(subject, outcomes) for subject in subjects])


def run_plays(plays: Sequence[Play], on_progress: Progress | None = None) -> list[Outcome]:
    """Play several at once, and return what came of each, in order."""
    if len(plays) == 1:
        return [run_play(plays[0])]
    outcomes: dict[int, Outcome] = {}
    workers = min(cpu_count() or 1, len(plays)) or 1
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin_worker) as pool:
        try:
            with hold_interrupts():  # the workers begin here: this process ends them
                places = {pool.submit(run_play, task): n for n, task in enumerate(plays)}
            for done, future in enumerate(as_completed(places), 1):
                outcomes[places[future]] = future.result()
                if on_progress:
                    on_progress(done, len(plays))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise
    return [outcome for _, outcome in sorted(outcomes.items())]


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends; processes that begin in it never get it.

    Blocked signals are what a new process inherits. They do not suffice here: another thread may
    take the signal, and its handler would interrupt this one.
    """
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    blocked: set[int] = set()
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def sort_results(results: Sequence[Result]) -> list[Result]:
    return sorted(results, key=lambda result: -result.default_ratio)


def _begin_worker() -> None:
    from om_proxy.observability import logs  # noqa: PLC0415 - in a worker alone

    logs.configure_log("off")


def _conclude(subject: Subject, outcomes: Iterator[Outcome]) -> Result:
    """Bill what came of a conversation's plays, in the order of `list_plays`."""
    bills: dict[str, dict[str, Bill]] = {}
    degraded_count = 0
    for name, model in subject.memory_models.items():
        played = {rates: next(outcomes) for rates in RATES}
        degraded_count += played[MEASURED].degraded_calls
        bills[name] = {
            rates.name: bill_outcome(outcome, subject, model) for rates, outcome in played.items()
        }
    return build_result(subject, bills, degraded_count)


def build_result(
    subject: Subject,
    bills: Mapping[str, Mapping[str, Bill]],
    degraded_calls: int,
    model_notes: ModelNotes | None = None,
) -> Result:
    """Add what the conversation costs without memory."""
    full, sent = list_full_prompts(subject.conversation), [call.sent for call in subject.calls]
    return Result(
        subject,
        bill_recorded(subject),
        bill_prompts(subject, sent) + bill_compactions(subject),
        bill_prompts(subject, full) if is_compacted(subject.conversation) else None,
        bills,
        degraded_calls,
        model_notes,
    )
