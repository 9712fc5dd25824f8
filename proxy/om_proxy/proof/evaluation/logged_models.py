"""One way to every model of a run: it logs each call with its answer and price, answers a call that
the log holds already, and keeps the budget."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from om_proxy.agents.models import Price
from om_proxy.common.errors import OmError
from om_proxy.proof.evaluation.call_log import CallKey, CallLog, CallRecord, hash_body
from om_proxy.proof.evaluation.models import Asked, Model, ModelUnavailable

MAX_ATTEMPTS = 5  # for faults of the transport; no answer is asked twice for its content
FIRST_PAUSE_S = 1.0  # doubled after each attempt
MEMORY_STEP = "memory"
# the bounds of what a call may cost: a token has two bytes at least, on average
BYTES_OF_A_TOKEN = 2
DEFAULT_MAX_OUTPUT_TOKENS = 16_384


class BudgetReached(OmError):
    """The next call might cost more than is left of the budget."""


class CallMissing(OmError):
    """The log has no answer to a call, and no model may be asked."""


class LogUnwritable(OmError):
    """The log cannot be written: what is not logged must not be used."""


class LoggedModels:
    """Asks models, each step its own."""

    def __init__(
        self, log: CallLog, models: Mapping[str, Model], budget: float | None = None
    ) -> None:
        """`models` by step (the part of its name before a colon). None at all: every call must
        stand in the log. `budget`: dollars of the whole run, those of earlier parts included."""
        self._log, self._models, self._budget = log, models, budget
        self._known: dict[CallKey, CallRecord] = {}
        self._occurrences: Counter[tuple[str, str, str]] = Counter()
        self._reserved = 0.0
        self.spent = 0.0
        self.failure: OmError | None = None
        for record in log:
            self._known[record.key] = record
            self.spent += record.dollars or 0.0

    async def ask(
        self, step: str, case: str, body: Mapping[str, Any], gold: str = ""
    ) -> CallRecord:
        """Return the answer of the step's model, or the one of the log. `gold`: what scripted models
        go by.

        Raises BudgetReached, CallMissing, ModelUnavailable and ModelRefused. The error stays for
        `raise_failure`: where the proxy asks, it hides it from its client."""
        self.raise_failure()
        try:
            return await self._ask(step, case, body, gold)
        except OmError as exc:
            self.failure = exc
            raise

    def raise_failure(self) -> None:
        """Raise what kept a call from an answer: the run cannot go on."""
        if self.failure:
            raise self.failure

    async def _ask(self, step: str, case: str, body: Mapping[str, Any], gold: str) -> CallRecord:
        digest = hash_body(body)
        self._occurrences[step, case, digest] += 1
        key = CallKey(step, case, self._occurrences[step, case, digest], digest)
        if known := self._known.get(key):
            return known
        if not self._models:
            raise CallMissing(f"{step}, case {case}: the log has no call with this prompt")
        model = self._models[step.partition(":")[0]]
        worst = self._reserve(model, body)
        try:
            answer, attempts = await _ask_again(model, Asked(step, body, gold))
        finally:
            self._reserved -= worst
        record = CallRecord(
            key, model.name, body, answer, find_dollars(answer, model.price), attempts
        )
        self.spent += record.dollars or 0.0
        try:
            self._log.append(record)
        except OSError as exc:
            raise LogUnwritable(
                f"the log of calls cannot be written ({exc.strerror}): make room, and resume"
            ) from exc
        self._known[key] = record
        return record

    def _reserve(self, model: Model, body: Mapping[str, Any]) -> float:
        """Set aside what the call may cost at the most."""
        worst = find_worst_dollars(body, model.price)
        if self._budget is not None and self.spent + self._reserved + worst > self._budget:
            raise BudgetReached(
                f"${self.spent:.2f} of ${self._budget:.2f} are spent, and the next call may cost"
                f" ${worst:.2f}: go on with `om-proxy eval resume RUN --budget D`, or replay with"
                " the same --log"
            )
        self._reserved += worst
        return worst


def find_dollars(answer: Mapping[str, Any], price: Price | None) -> float | None:
    """Return what an answer cost by its usage; None without a price."""
    if price is None:
        return None
    usage = answer.get("usage") or {}
    whole = usage.get("prompt_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return float(
        (whole - cached) * price.input
        + cached * price.cached_input
        + (usage.get("completion_tokens") or 0) * price.output
    )


def find_worst_dollars(body: Mapping[str, Any], price: Price | None) -> float:
    """Return an upper bound of what a call costs."""
    if price is None:
        return 0.0
    output = body.get("max_tokens") or body.get("max_completion_tokens")
    read = len(orjson.dumps(body)) / BYTES_OF_A_TOKEN
    return float(
        read * max(price.input, price.cache_write)
        + (output or DEFAULT_MAX_OUTPUT_TOKENS) * price.output
    )


async def _ask_again(model: Model, asked: Asked) -> tuple[dict[str, Any], int]:
    pause = FIRST_PAUSE_S
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await model.complete(asked), attempt
        except (httpx.TransportError, ModelUnavailable) as exc:
            if attempt == MAX_ATTEMPTS:
                raise ModelUnavailable(
                    f"{model.name} did not answer {attempt} times: {exc}"
                ) from exc
            await asyncio.sleep(pause)
            pause *= 2
    raise AssertionError
