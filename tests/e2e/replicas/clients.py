"""Clients that talk through the front, and write down what became of each request."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from om_proxy.common.reasons import Reason
from tests.e2e.crash.client import complete
from tests.e2e.crash.models import FILLER, SAID
from tests.e2e.replicas.front import Front
from tests.e2e.replicas.history import Forgetting, Outcome, Reading, Turn
from tests.e2e.replicas.pausing import Pause
from tests.e2e.replicas.plan import ClientKind
from tests.support.three_apis import read_reply

Message = dict[str, Any]
# a model whose threads share the log of their resource
SHARER = "scripted-sharer"

REQUEST_TIMEOUT_S = 30.0
# while processes stand still: shorter than they do
SHORT_TIMEOUT_S = 2.0
THINK_S = 0.02
TURNS_OF_A_THREAD = 14
WINDOW_MESSAGES = 6
SYSTEM: Message = {"role": "system", "content": "You keep the books of a freight office."}

_numbers = count(1)


@dataclass
class Notebook:
    """What all clients saw."""

    turns: list[Turn] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    forgettings: list[Forgetting] = field(default_factory=list)
    # whose forgetting was not answered
    unknown_threads: set[str] = field(default_factory=set)
    degraded_count: int = 0
    # by what was said: the port of the replica that answered
    served_by: dict[str, int] = field(default_factory=dict)
    # said by clients that will not say it again
    said_once: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)  # bad answers

    def count(self, outcome: Outcome) -> int:
        return sum(turn.outcome == outcome for turn in self.turns)


class ReplicaClient:
    """One client, with one thread after the other. A `full` one sends its whole history with each
    request and takes answers back at times. A `window` one sends its newest message and the few
    before it, a `thin` one its newest message alone. So does a `paired` one, and another client
    speaks on the same threads; a `sharing` one has threads of its own that share a log with another
    client's. A `meeting` one speaks in two threads of a resource, in turn and then in both at once.
    Each leaves at times in the middle of a reply."""

    def __init__(
        self,
        number: int,
        kind: ClientKind,
        front: Front,
        pause: Pause,
        notebook: Notebook,
        seed: int,
        timeout_s: float,
        leaving_share: float,
    ) -> None:
        self._timeout_s = timeout_s
        self._leaving_share = leaving_share
        # two neighbours of each seven are paired, and two share a resource
        self._name = f"p{number // 7}" if kind == "paired" else f"c{number}"
        self._resource = f"r{number // 7}" if kind == "sharing" else ""
        self._kind = kind
        self._front = front
        self._pause = pause
        self._base = front.base
        self._notebook = notebook
        self._dice = random.Random(f"{seed} {number}")

    async def talk_until(self, ended: asyncio.Event) -> None:
        for number in count():
            thread = f"{self._name}-{number}"
            if self._kind == "meeting":
                await self._meet(thread, alone="ab" if number % 2 else "aba")
            else:
                await self._talk(thread, ended)
            if ended.is_set():
                return
            if self._kind in ("full", "thin", "window", "sharing") and self._dice.random() < 0.3:
                async with self._pause.stay_out():
                    await self._forget(thread)

    async def _meet(self, resource: str, alone: str) -> None:
        """Speak in threads of a resource: shortly in turn, then in both at once, and no more. Both
        together wake the resource. By how often they spoke before, either alone does or none."""
        self._resource = resource
        for side in alone:
            await self._ask(f"{resource}-{side}", [], [], _say(""))
        await asyncio.gather(
            *(self._ask(f"{resource}-{side}", [], [], _say(f"{FILLER} {FILLER}")) for side in "ab")
        )

    async def _talk(self, thread: str, ended: asyncio.Event) -> None:
        history: list[Message] = []
        again: Message | None = None  # to be asked once more, in the same words
        for _ in range(TURNS_OF_A_THREAD):
            if ended.is_set():
                return
            kept = history
            may_fork = self._kind == "full" and len(history) >= 4 and again is None
            if may_fork and self._dice.random() < 0.15:
                kept = history[: self._dice.randrange(1, len(history) // 2) * 2]
            message = again or _say(FILLER)
            async with self._pause.stay_out():
                reply = await self._ask(thread, kept, history[len(kept) :], message)
            again = None
            if reply is not None:
                history = [*kept, message, {"role": "assistant", "content": reply}]
            elif self._kind == "full" and history and kept is history and self._dice.random() < 0.5:
                # not alone: after a reply that went out, that is a message said again
                again = message
            if self._dice.random() < 0.2:
                async with self._pause.stay_out():
                    await self._read(thread)
            await asyncio.sleep(self._dice.random() * 2 * THINK_S)

    async def _ask(
        self, thread: str, kept: Sequence[Message], left_out: Sequence[Message], message: Message
    ) -> str | None:
        """Send a request and write down its end. Return the reply's text, if all of it came."""
        shown = self._show(kept)
        messages = [SYSTEM, *shown, message] if shown or self._kind == "full" else [message]
        stream = self._dice.random() < 0.7
        model = SHARER if self._resource else "scripted-actor"
        body = {"model": model, "messages": messages, "stream": stream}
        leaves = self._dice.random() < self._leaving_share
        headers = {"x-om-thread": thread, "connection": "close"}
        if self._resource:
            headers["x-om-resource"] = self._resource
        arrived, receipt, outcome, port = b"", "", "unknown", 0
        has_receipt = False
        began_at = time.monotonic()
        try:
            async with (
                httpx.AsyncClient(trust_env=False, timeout=self._timeout_s) as http,
                http.stream(
                    "POST",
                    f"{self._base}/v1/chat/completions",
                    json=body,
                    headers=headers,
                ) as answer,
            ):
                receipt = answer.headers.get("x-om-status", "")
                has_receipt = True
                own_port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
                port = self._front.served[own_port]
                async for piece in answer.aiter_raw():
                    if leaves:
                        break
                    arrived += piece
                if answer.status_code != 200:
                    self._notebook.errors.append(f"{answer.status_code} {arrived[:200]!r}")
                if answer.headers.get("x-om-reason") == Reason.TOOL_PAIRS:
                    self._notebook.errors.append(f"{thread}: {Reason.TOOL_PAIRS}")
        except httpx.TransportError:
            pass  # the connection broke: what arrived tells whether the end was there to be seen
        reply = None
        if complete("chat", arrived, stream=stream):
            reply = str(read_reply("chat", arrived, stream=stream)["content"])
            outcome = "acknowledged"
        is_degraded = receipt == "degraded"
        if is_degraded and reply is not None:
            # it may wait in a process, and end with it
            self._notebook.degraded_count += 1
            outcome = "unknown"
        self._notebook.served_by[find_mark(message)] = port
        if self._kind != "full":
            self._notebook.said_once.add(find_mark(message))
        self._notebook.turns.append(
            Turn(
                thread,
                find_mark(message),
                began_at,
                time.monotonic(),
                "acknowledged" if outcome == "acknowledged" else "unknown",
                find_mark({"content": reply}) if reply else "",
                not is_degraded,
                tuple(map(find_mark, left_out)),
                tuple(map(find_mark, shown)),
                has_receipt=has_receipt,
            )
        )
        return reply

    def _show(self, kept: Sequence[Message]) -> Sequence[Message]:
        """Return what is shown of the messages before the newest one."""
        if self._kind == "full":
            return kept
        return kept[-WINDOW_MESSAGES:] if self._kind == "window" else []

    async def _read(self, thread: str) -> None:
        began_at = time.monotonic()
        answer = await self._admin("GET", f"/om/v1/threads/{thread}")
        if answer is not None and answer.status_code == 200:
            status = answer.json()
            self._notebook.readings.append(
                Reading(
                    thread, began_at, time.monotonic(), 0, status["version"], status["generation"]
                )
            )

    async def _forget(self, thread: str) -> None:
        answer = await self._admin("DELETE", f"/om/v1/threads/{thread}")
        if answer is None or answer.status_code != 200:
            self._notebook.unknown_threads.add(thread)
            return
        marks = {
            mark
            for turn in self._notebook.turns
            if turn.thread == thread
            for mark in (turn.said, turn.reply)
        }
        self._notebook.forgettings.append(Forgetting(frozenset(marks), time.monotonic()))
        began_at = time.monotonic()
        answer = await self._admin("GET", f"/om/v1/threads/{thread}/messages")
        if answer is not None:
            told = frozenset(SAID.findall(answer.text))
            self._notebook.readings.append(
                Reading(thread, began_at, time.monotonic(), -1, 0, 0, told)
            )

    async def _admin(self, method: str, path: str) -> httpx.Response | None:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=self._timeout_s) as http:
                return await http.request(
                    method,
                    f"{self._base}{path}",
                    headers={"connection": "close"},
                    params={"resource": self._resource} if self._resource else None,
                )
        except httpx.TransportError:
            return None


def _say(text: str) -> Message:
    return {"role": "user", "content": f"M{next(_numbers):05d} to note: {text}."}


def find_mark(message: Message) -> str:
    found = SAID.search(str(message["content"]))
    assert found is not None, message
    return found.group()
