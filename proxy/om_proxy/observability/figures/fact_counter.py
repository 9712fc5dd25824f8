"""Count facts: a few additions for each, because they happen on a request's path."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from om_proxy.common.reasons import Reason, Status
from om_proxy.memory.model import Key
from om_proxy.memory.token_prices import Usage
from om_proxy.observability import facts
from om_proxy.observability.figures import metrics
from om_proxy.observability.figures.label_values import ModelLabels, ThreadLabels, list_plain_names
from om_proxy.observability.figures.metrics import Metric
from om_proxy.observability.figures.series import Series
from om_proxy.settings.config import Settings, WatchedSettings

MAX_CACHED_PLACES = 4_096
MICRODOLLARS_A_DOLLAR = 1_000_000
REFUSED_REASON = "refused"
CAUSES_BY_CODE = {
    "disconnected": "client-left",
    "truncated": "reply-truncated",
    "om_upstream_unreachable": "upstream-unreachable",
    "om_upstream_timeout": "upstream-timeout",
    "om_overloaded": "overloaded",
}

CALL_METRICS: dict[facts.AgentWork, tuple[str, Metric, Metric]] = {
    "observe": ("observer", metrics.OBSERVER_DURATION, metrics.OBSERVER_COST),
    "reflect": ("reflector", metrics.REFLECTOR_DURATION, metrics.REFLECTOR_COST),
    "embed": ("embedder", metrics.EMBEDDING_DURATION, metrics.EMBEDDING_COST),
}
OVERHEAD_BOUNDS, FIRST_BYTE_BOUNDS = metrics.OVERHEAD.bounds, metrics.FIRST_BYTE.bounds
OVERHEAD_SUM = len(OVERHEAD_BOUNDS) + 1
FIRST_BYTE_SUM = len(FIRST_BYTE_BOUNDS) + 1


class UsagePlaces(Struct, frozen=True):
    """The places of the tokens that a server reports."""

    input: int
    cached: int
    output: int


class TurnPlaces(Struct, frozen=True):
    """The places of the numbers that a turn adds to."""

    requests: int
    overhead: int
    first_byte: int
    received: int  # this and the next: 0 for a turn without tokens
    sent: int
    usage: UsagePlaces | None  # None: no usage was reported


class PricePlaces(Struct, frozen=True):
    """The places of the dollars that a turn costs, with memory and without."""

    baseline: int
    actual: int


class FactCounter:
    """The subscriber that counts. Each place is looked up once, until the configuration changes:
    that may give a model another label."""

    def __init__(
        self,
        series: Series,
        models: ModelLabels,
        threads: ThreadLabels,
        watched: WatchedSettings,
    ) -> None:
        self._series = series
        self._array = series.array
        self._models = models
        self._threads = threads
        self._watched = watched
        self._settings: Settings | None = None  # those that the places were found by
        self._turns: dict[tuple[object, ...], TurnPlaces] = {}
        self._prices: dict[tuple[object, ...], PricePlaces] = {}
        self._counts: dict[type[facts.Fact], Callable[[Any], None]] = {
            facts.TurnEnded: self._count_turn,
            facts.TurnPriced: self._count_prices,
            facts.MemoryCallEnded: self._count_call,
            facts.LookUpsMade: self._count_look_ups,
            facts.Observed: self._count_observation,
            facts.Reflected: self._count_reflection,
            facts.UnreachedTurnEnded: self._count_unreached,
            facts.RequestRefused: self._count_refused,
            facts.CredentialRefused: lambda fact: self._series.add(
                metrics.CREDENTIALS_REFUSED, fact.kind
            ),
            facts.Bypassed: lambda _: self._count_failure("memory-bypassed"),
            facts.Uncommitted: lambda fact: self._count_failure("turn-lost", fact.turns or 1),
            facts.ExtraFailed: lambda _: self._count_failure("turn-extra"),
            facts.Retired: lambda fact: self._count_retired(fact.why, fact.threads),
            facts.LogRetired: lambda fact: self._count_retired(fact.why, fact.count),
            facts.MemoryWorkFailed: lambda fact: self._count_failure(fact.work),
        }

    def subscribe_to(self, emitted: facts.Facts) -> None:
        for kind, count in self._counts.items():
            emitted.subscribe(count, kind)

    def _label(self, model: str | None) -> str:
        if self._watched.current is not self._settings:
            self._take_settings()
        return self._models.label(model)

    def _take_settings(self) -> None:
        """Name the models as the configuration in force does, and look all places up anew."""
        self._settings = self._watched.current
        self._models.configure(list_plain_names(self._settings))
        self._turns.clear()
        self._prices.clear()

    def _count_turn(self, turn: facts.TurnEnded) -> None:
        if self._watched.current is not self._settings:
            self._take_settings()
        usage, received = turn.usage, turn.tokens_received
        key = turn.key if self._threads.is_on else None
        place = (
            turn.memory,
            turn.reason,
            turn.upstream,
            turn.api,
            turn.client,
            turn.model,
            received is None,
            usage is None,
            key,
        )
        places = self._turns.get(place) or self._find_turn_places(place, turn)
        numbers = self._array.numbers
        numbers[places.requests] += 1.0
        seconds = turn.overhead_ms / 1_000
        numbers[places.overhead + bisect_left(OVERHEAD_BOUNDS, seconds)] += 1.0
        numbers[places.overhead + OVERHEAD_SUM] += seconds
        if (first_byte_s := turn.first_byte_s) is not None:
            numbers[places.first_byte + bisect_left(FIRST_BYTE_BOUNDS, first_byte_s)] += 1.0
            numbers[places.first_byte + FIRST_BYTE_SUM] += first_byte_s
        if received is not None and turn.tokens_sent is not None:
            numbers[places.received] += received
            numbers[places.sent] += turn.tokens_sent
        if usage is not None and places.usage is not None:
            self._count_usage(usage, places.usage, turn.model, "actor", turn.key)
        if turn.later_rounds:
            self._series.add(metrics.LATER_ROUNDS, amount=turn.later_rounds)
        if turn.end != "complete" or turn.status >= 400:
            self._count_end(turn.status, turn.end)

    def _count_look_ups(self, step: facts.LookUpsMade) -> None:
        for mode, outcome in step.look_ups:
            self._series.add(metrics.LOOK_UPS, mode, outcome)
        self._series.observe(metrics.LOOK_UP_SECONDS, number=step.seconds)

    def _find_turn_places(self, place: tuple[object, ...], turn: facts.TurnEnded) -> TurnPlaces:
        """Find the places of a turn once. A turn without tokens needs no model."""
        find = self._series.find
        received = sent = 0
        if turn.tokens_received is not None:
            model, more = self._label(turn.model), self._list_thread_labels(turn.key)
            received = find(metrics.PROMPT_TOKENS, "received", model, more=more)
            sent = find(metrics.PROMPT_TOKENS, "sent", model, more=more)
        words = (turn.memory, turn.reason or "", turn.upstream, turn.api, turn.client, "")
        places = TurnPlaces(
            find(metrics.REQUESTS, *words),
            find(metrics.OVERHEAD, turn.memory),
            find(metrics.FIRST_BYTE, turn.upstream),
            received,
            sent,
            self._find_usage_places(turn.model, "actor", turn.key) if turn.usage else None,
        )
        if len(self._turns) >= MAX_CACHED_PLACES:
            self._turns.clear()
        self._turns[place] = places
        return places

    def _find_usage_places(self, model: str | None, who: str, key: Key | None) -> UsagePlaces:
        label, more = self._label(model), self._list_thread_labels(key)
        return UsagePlaces(
            *(
                self._series.find(metrics.USAGE_TOKENS, kind, label, who, more=more)
                for kind in ("input", "cached", "output")
            )
        )

    def _count_usage(
        self, usage: Usage, places: UsagePlaces, model: str | None, who: str, key: Key | None
    ) -> None:
        numbers = self._array.numbers
        numbers[places.input] += usage.input_tokens
        numbers[places.cached] += usage.cached_tokens
        numbers[places.output] += usage.output_tokens
        if usage.cache_write_tokens:  # few providers report any: it has no series before
            label, more = self._label(model), self._list_thread_labels(key)
            metric, amount = metrics.USAGE_TOKENS, usage.cache_write_tokens
            self._series.add(metric, "cache_write", label, who, amount=amount, more=more)

    def _count_call(self, call: facts.MemoryCallEnded) -> None:
        """Count the call under the model that answered, and what was paid under each model."""
        who, duration, cost = CALL_METRICS[call.work]
        key = call.keys[0] if len(call.keys) == 1 else None
        label = self._label(call.model)
        self._series.observe(duration, label, call.outcome, number=call.seconds)
        for model, account in call.accounts:
            tokens = account.tokens
            usage = Usage(tokens.prompt, tokens.cached, tokens.cache_write, tokens.output)
            self._count_usage(usage, self._find_usage_places(model, who, key), model, who, key)
            label, more = self._label(model), self._list_thread_labels(key)
            self._series.add(cost, label, call.history, amount=account.cost, more=more)

    def _count_prices(self, turn: facts.TurnPriced) -> None:
        """Count whole micro-dollars: sums of them stay exact. The page shows dollars."""
        if self._watched.current is not self._settings:
            self._take_settings()
        place = (turn.model, turn.history, turn.key if self._threads.is_on else None)
        places = self._prices.get(place) or self._find_price_places(place, turn)
        numbers = self._array.numbers
        account = turn.account
        # a client that sends less than its history would have paid what it paid
        baseline = account.baseline_cost if turn.history == "full" else account.cost
        numbers[places.baseline] += baseline
        numbers[places.actual] += account.cost

    def _find_price_places(self, place: tuple[object, ...], turn: facts.TurnPriced) -> PricePlaces:
        model, more = self._label(turn.model), self._list_thread_labels(turn.key)
        places = PricePlaces(
            self._series.find(metrics.COST_BASELINE, model, turn.history, more=more),
            self._series.find(metrics.COST_ACTUAL, model, turn.history, more=more),
        )
        if len(self._prices) >= MAX_CACHED_PLACES:
            self._prices.clear()
        self._prices[place] = places
        return places

    def _count_observation(self, fact: facts.Observed) -> None:
        if fact.kept:
            self._count_created(metrics.OBSERVATIONS_CREATED, fact.key, fact.model)
        self._count_ratio("observation", fact.source_tokens, fact.tokens)

    def _count_reflection(self, fact: facts.Reflected) -> None:
        self._count_created(metrics.REFLECTIONS_CREATED, fact.key, fact.model)
        self._count_ratio("reflection", fact.source_tokens, fact.tokens)

    def _count_created(self, metric: Metric, key: Key, model: str | None) -> None:
        label, more = self._label(model), self._list_thread_labels(key)
        self._series.add(metric, label, more=more)

    def _count_ratio(self, kind: str, source_tokens: int, tokens: int) -> None:
        if source_tokens > 0:
            self._series.observe(metrics.COMPRESSION_RATIO, kind, number=tokens / source_tokens)

    def _count_unreached(self, turn: facts.UnreachedTurnEnded) -> None:
        self._count_request(Reason.ROUTE, turn.api, turn.client, turn.route)
        self._count_end(turn.status, turn.end)

    def _count_refused(self, fact: facts.RequestRefused) -> None:
        self._count_request(REFUSED_REASON, fact.api, fact.client)
        self._count_end(fact.status, fact.error)

    def _count_request(self, reason: str, api: str, client: str, route: str = "") -> None:
        words = (Status.OFF, reason, "", api, client, route)
        self._series.add(metrics.REQUESTS, *words)

    def _count_end(self, status: int, end: str) -> None:
        if cause := find_cause(status, end):
            self._count_failure(cause)

    def _count_retired(self, why: str, count: int) -> None:
        self._series.add(metrics.RETIRED, why, amount=count)

    def _count_failure(self, cause: str, times: int = 1) -> None:
        self._series.add(metrics.FAILURES, cause, amount=times)

    def _list_thread_labels(self, key: Key | None) -> tuple[str, ...]:
        return self._threads.list_labels(key) if key is not None and self._threads.is_on else ()


def find_cause(status: int, end: str) -> str | None:
    """Return the cause of a request that failed, of FAILURE_CAUSES; None for one that did not.
    `end`: as in facts.TurnEnded."""
    if cause := CAUSES_BY_CODE.get(end):
        return cause
    if end.startswith("om_"):
        return "refused" if status < 500 else "internal"
    if status == 429:
        return "upstream-429"
    if status >= 400:
        return "upstream-5xx" if status >= 500 else "upstream-4xx"
    return None
