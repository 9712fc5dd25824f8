"""The log of a run, in files that only grow: each call of a model, as it was asked and answered. The
one way to the models answers a call that the log holds already, and keeps the budget.

A record is a line of JSON in a gzip member of its own, so a run that is killed in the middle of a
write loses that record alone.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from om_proxy.agents.models import Price
from om_proxy.common.errors import OmError, UsageError
from om_proxy.proof.evaluation.models import Model, ModelUnavailable

FILE_PATTERN = "calls-*.jsonl.gz"
MAX_FILE_BYTES = 32 << 20  # a new file begins then
MAX_ATTEMPTS = 5  # for faults of the transport; no answer is asked twice for its content
FIRST_PAUSE_S = 1.0  # doubled after each attempt
MEMORY_STEP = "memory"
# the bounds of what a call may cost: a token has two bytes at least, on average
BYTES_OF_A_TOKEN = 2
DEFAULT_MAX_OUTPUT_TOKENS = 16_384


class CallKey(NamedTuple):
    """What a call is known by. `occurrence`: of equal calls of the step and case, from 1."""

    step: str
    case: str
    occurrence: int
    body_sha256: str


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One answered call. `dollars` is None if the model's price is not known."""

    key: CallKey
    model: str
    request: Mapping[str, Any]
    answer: Mapping[str, Any]
    dollars: float | None
    attempts: int

    @property
    def text(self) -> str:
        """The text of the chat completion; empty if it has none."""
        choices = self.answer.get("choices") or [{}]
        return str((choices[0].get("message") or {}).get("content") or "")

    @property
    def input_tokens(self) -> int:
        return int((self.answer.get("usage") or {}).get("prompt_tokens") or 0)

    @property
    def output_tokens(self) -> int:
        return int((self.answer.get("usage") or {}).get("completion_tokens") or 0)


class CallLog:
    """The records of a folder. One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        paths = sorted(folder.glob(FILE_PATTERN))
        if paths:
            cut_torn_end(paths[-1])
        self._number = max(1, len(paths))

    def append(self, record: CallRecord) -> None:
        """Write the record, and return once it survives a power cut."""
        path = self._folder / f"calls-{self._number:04}.jsonl.gz"
        if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
            self._number += 1
            path = self._folder / f"calls-{self._number:04}.jsonl.gz"
        line = orjson.dumps(
            {
                **record.key._asdict(),
                "model": record.model,
                "request": record.request,
                "answer": record.answer,
                "dollars": record.dollars,
                "attempts": record.attempts,
            }
        )
        with path.open("ab") as file:
            file.write(gzip.compress(line + b"\n", mtime=0))
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[CallRecord]:
        return read_records(self._folder)


def read_records(folder: Path) -> Iterator[CallRecord]:
    """Yield all records in the order in which they were written.

    Raises UsageError, with file and line, for a line that is no record."""
    for path in sorted(folder.glob(FILE_PATTERN)):
        try:
            with gzip.open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    yield _read_record(line, path, number)
        except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
            raise UsageError(
                f"{path.name} is damaged ({exc}): `om-proxy eval resume` goes on behind its last"
                " whole call"
            ) from exc


def hash_body(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a request's body, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def cut_torn_end(path: Path) -> None:
    """Remove what a killed run has written of its last record."""
    data, whole = path.read_bytes(), 0
    while whole < len(data):
        member = zlib.decompressobj(wbits=31)
        try:
            member.decompress(data[whole:])
        except zlib.error:
            break
        if not member.eof:
            break
        whole = len(data) - len(member.unused_data)
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def _read_record(line: bytes, path: Path, number: int) -> CallRecord:
    try:
        row = orjson.loads(line)
        key = CallKey(row["step"], row["case"], row["occurrence"], row["body_sha256"])
        return CallRecord(
            key, row["model"], row["request"], row["answer"], row["dollars"], row["attempts"]
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"{path.name}, line {number}, is no record of a call: {exc}") from exc


# ── asking ────────────────────────────────────────────────────────────────────────────────────────


class BudgetReached(OmError):
    """The next call might cost more than is left of the budget."""


class CallMissing(OmError):
    """The log has no answer to a call, and no model may be asked."""


class LogUnwritable(OmError):
    """The log cannot be written: what is not logged must not be used."""


class LoggedModels:
    """Asks models, each step its own, and logs each call with its answer and price."""

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
            answer, attempts = await _ask_again(model, body, gold)
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


def sum_dollars(dollars: Iterable[float | None]) -> float | None:
    """Return the sum; None if a price is not known."""
    found = list(dollars)
    return None if None in found else sum(d for d in found if d is not None)


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


async def _ask_again(
    model: Model, body: Mapping[str, Any], gold: str
) -> tuple[dict[str, Any], int]:
    pause = FIRST_PAUSE_S
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await model.complete(body, gold), attempt
        except (httpx.TransportError, ModelUnavailable) as exc:
            if attempt == MAX_ATTEMPTS:
                raise ModelUnavailable(
                    f"{model.name} did not answer {attempt} times: {exc}"
                ) from exc
            await asyncio.sleep(pause)
            pause *= 2
    raise AssertionError
