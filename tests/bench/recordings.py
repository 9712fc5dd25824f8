"""The recorded conversations as calls with their times."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from om_proxy.proof.billing import BilledTokens, sum_tokens
from tests.bench.replaying import Timed, counted
from tests.e2e.replay import SYSTEM, Message

PAUSE = 30.0  # seconds between two calls of a service chat
START = 1_700_000_000.0  # unix seconds, of conversations without times


# ── the coding session ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Session:
    """The coding session: its calls, and what was recorded of each."""

    calls: list[Timed]
    recorded: list[dict[str, Any]]  # `usage` as the provider reported it
    model: str

    @property
    def context(self) -> list[int]:
        """Recorded prompt tokens of each call."""
        return [u["input"] + u["cacheRead"] + u["cacheWrite"] for u in self.recorded]

    @property
    def bill(self) -> BilledTokens:
        return sum_tokens(map(billed, self.recorded))

    @property
    def lost(self) -> set[int]:
        """The calls that found nothing in the cache though the one before had written it. Few
        follow a long pause: the reason is not recorded, so they are replayed with memory as
        without."""
        return {n for n, u in enumerate(self.recorded) if n and not u["cacheRead"]}


def coding_session(path: Path) -> Session:
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()
    ]
    kept = ("role", "content", "tool_calls", "tool_call_id")
    messages: list[Message] = [{k: m[k] for k in kept if k in m} for m in lines]
    times = [datetime.fromisoformat(m["created_at"]).timestamp() for m in lines]
    calls, recorded = [], []
    for n, line in enumerate(lines):
        if line["role"] == "assistant":
            sent = [SYSTEM, *messages[:n]]
            calls.append(
                Timed("session", sent, messages[n], times[n - 1], times[n], line["usage"]["output"])
            )
            recorded.append(line["usage"])
    (model,) = {line["model"] for line in lines if "model" in line}
    return Session(calls, recorded, model)


def billed(usage: Mapping[str, Any]) -> BilledTokens:
    return BilledTokens(usage["cacheRead"], usage["cacheWrite"], usage["input"], usage["output"])


def paused(calls: Sequence[Timed], lost: Collection[int], lifetime: float) -> list[Timed]:
    """The calls with a pause longer than the cache lives before each of `lost`: as if that had been
    the reason."""
    moved, later = [], 0.0
    for n, call in enumerate(calls):
        if n in lost:
            later += max(0.0, lifetime + 1 - (call.asked_at - calls[n - 1].replied_at))
        moved.append(
            replace(call, asked_at=call.asked_at + later, replied_at=call.replied_at + later)
        )
    return moved


# ── the service chats ─────────────────────────────────────────────────────────────────────────────


def service_chats(path: Path, most: int = 0) -> list[Timed]:
    """A thread for each chat, or for as many in a row as stay within `most` tokens; one after the
    other in time."""
    calls: list[Timed] = []
    for name, thread in _threads(
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()], most
    ):
        start = calls[-1].asked_at + PAUSE if calls else START
        calls += spaced(name, thread, start, PAUSE)
    return calls


def _threads(chats: Sequence[dict[str, Any]], most: int) -> Iterator[tuple[str, list[Message]]]:
    name, thread, size = "", list[Message](), 0
    for chat in chats:
        messages = [
            {k: v for k, v in m.items() if v is not None or k == "content"}
            for m in chat["messages"]
        ]
        more = sum(
            counted(m)[1] for m in messages[1:]
        )  # without the system message, which is the same in all
        if thread and size + more > most:
            yield name, thread
            thread = []
        if not thread:
            name, thread, size = chat["id"], messages[:1], 0
        thread, size = thread + messages[1:], size + more
    yield name, thread


def spaced(
    thread: str, conversation: Sequence[Message], start: float, pause: float
) -> Iterator[Timed]:
    """A conversation without times: a call for each assistant message, `pause` seconds apart."""
    at = start
    for n, message in enumerate(conversation):
        if message["role"] == "assistant":
            yield Timed(thread, conversation[:n], message, at, at + pause / 2, counted(message)[1])
            at += pause
