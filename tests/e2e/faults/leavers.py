"""Clients that leave, each in its own phase of a request, and the model server that they leave.

Both run in the loop of the proxy between them, so that one clock tells when a client left and when
its upstream connection closed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from tests.e2e.faults.faults import DONE, Content
from tests.support.raw_client import RawClient
from tests.support.upstream_server import SSE_HEAD, Call, chunk, script_answer

POOL = 10  # connections to the model server
# seconds in which an upstream connection must be closed after its client has left
# (docs/contributing/http.md#leaving)
WITHIN = 1.0
THREADS = 100

# When the client leaves. Of those marked `held` the model server never ends its answer, so that its
# connection must be cut.
PHASES = (
    "in its own head",
    "in its own body",
    "in an upload",  # held
    "at once",
    "before the head",  # held
    "before the head, not streaming",  # held
    "after the head",  # held
    "in the middle",  # held
    "while it streams",
    "as it ends",
    "at any moment",
    "after the end",
)
TOGETHER = "all in one instant"  # held; half of them wait for a connection
HELD = frozenset((*PHASES[2:3], *PHASES[4:8], TOGETHER))
MODES = ("thread", "thread", "none")  # of a request: with memory, or passed on


@dataclass
class Hangup:
    """One client, and what its model server saw of it. Times are the loop's."""

    number: int
    phase: str
    thread: str | None
    seen: asyncio.Event = field(default_factory=asyncio.Event)  # the model server has the request
    seen_at: float | None = None
    left_at: float | None = None
    closed_at: float | None = None  # the upstream connection, while its answer was not at its end
    answered: bool = False  # the model server had sent all of its answer
    acknowledged: bool = False  # the client had seen all of it
    stuck: bool = False

    @property
    def stream(self) -> bool:
        return self.phase != "before the head, not streaming"

    @property
    def reply(self) -> str:
        return f"reply {self.number}"

    @property
    def lag(self) -> float | None:
        """Seconds from the client's leaving to the end of the upstream connection; None where there
        was none to cut."""
        if self.seen_at is None or self.left_at is None or self.answered:
            return None
        return (
            float("inf")
            if self.closed_at is None
            else max(0.0, self.closed_at - max(self.left_at, self.seen_at))
        )


class ModelServer:
    """Answers each hang-up as its phase wants it."""

    def __init__(self) -> None:
        self.hangups: dict[int, Hangup] = {}
        self._seen = asyncio.Event()

    async def next_seen(self) -> None:
        """Until a further request has come."""
        self._seen.clear()
        await self._seen.wait()

    async def __call__(self, call: Call) -> None:
        (number,) = call.seen.header(b"x-number")
        hangup = self.hangups.get(int(number))
        if hangup is None:  # one of those afterwards
            await script_answer(
                Content("fine", False).completion, b"Content-Type: application/json"
            )(call)
            return
        loop = asyncio.get_running_loop()
        hangup.seen_at = loop.time()
        hangup.seen.set()
        self._seen.set()
        hangup.answered = await self._answered(call, hangup)
        if not hangup.answered:
            await call.closed.wait()
            hangup.closed_at = loop.time()

    async def _answered(self, call: Call, hangup: Hangup) -> bool:
        """Whether the answer came to its end."""
        events = Content(hangup.reply, True).events
        if hangup.phase == "in an upload":
            await call.rest_of_body()
            return False
        await call.rest_of_body()
        if hangup.phase.startswith("before the head") or hangup.phase == TOGETHER:
            return False
        call.send(SSE_HEAD)
        if hangup.phase == "after the head":
            return False
        if hangup.phase == "in the middle":
            call.send(chunk(events[0]) + chunk(events[1]))
            return False
        padding = (
            [b": %d\n\n" % n for n in range(30)]
            if hangup.phase in ("while it streams", "at any moment")
            else []
        )
        for event in (*padding, *events, DONE):
            call.send(chunk(event))
            await asyncio.sleep(0)
            if call.closed.is_set():
                return False
        call.send(chunk(b""))
        return True


class Clients:
    def __init__(
        self,
        port: int,
        server: ModelServer,
        dice: random.Random,
        patience: float,
        *,
        uploads: bool = True,
    ) -> None:
        """`patience`: seconds after which one that waits for something is stuck. `uploads`: the
        relay passes a body on as it comes."""
        self._patience = patience
        self._phases = [phase for phase in PHASES if uploads or phase != "in an upload"]
        self._port = port
        self._server = server
        self._dice = dice

    def _hangup(self, number: int, phase: str) -> Hangup:
        thread = (
            f"t{number % THREADS}"
            if self._dice.choice(MODES) == "thread" and phase != "in an upload"
            else None
        )
        hangup = self._server.hangups[number] = Hangup(number, phase, thread)
        return hangup

    async def hang_up_together(self, numbers: Sequence[int]) -> list[Hangup]:
        """As many as the pool has connections are with the model server, the others wait; then
        nobody is there any more."""
        hangups = [self._hangup(number, TOGETHER) for number in numbers]
        clients = [await RawClient.connect(self._port) for _ in numbers]
        for hangup, client in zip(hangups, clients, strict=True):
            body, headers = self._request(hangup)
            client.send(body, headers=headers)
        try:
            async with asyncio.timeout(self._patience):
                while sum(hangup.seen.is_set() for hangup in hangups) < min(POOL, len(hangups)):
                    await self._server.next_seen()
        except TimeoutError:
            for hangup in hangups:
                hangup.stuck = True
        await self._turns()
        for hangup, client in zip(hangups, clients, strict=True):
            hangup.left_at = asyncio.get_running_loop().time()
            client.leave()
            await self._turns(2)
        return hangups

    async def hang_up(self, number: int) -> Hangup:
        hangup = self._hangup(number, self._phases[number % len(self._phases)])
        client = await RawClient.connect(self._port)
        try:
            async with asyncio.timeout(self._patience):
                await self._until_leaving(client, hangup)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            hangup.stuck = True
        hangup.left_at = asyncio.get_running_loop().time()
        client.leave()
        return hangup

    async def _until_leaving(self, client: RawClient, hangup: Hangup) -> None:
        body, headers = self._request(hangup)
        match hangup.phase:
            case "in its own head":
                client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: proxy\r\nX-Num")
                await self._moment()
            case "in its own body":
                client.send_head(
                    "POST", "/v1/chat/completions", b"Content-Length: %d" % len(body), *headers
                )
                client.writer.write(body[: len(body) // 2])
                await self._moment()
            case "in an upload":
                client.send_head("POST", "/v1/files", b"Transfer-Encoding: chunked", *headers)
                client.writer.write(chunk(b"half"))
                await hangup.seen.wait()
            case "at once":
                client.send(body, headers=headers)
                await self._turns(60)
            case "at any moment":
                client.send(body, headers=headers)
                await self._moment()
            case _:
                client.send(body, headers=headers)
                await self._until_there(client, hangup)

    async def _until_there(self, client: RawClient, hangup: Hangup) -> None:
        if hangup.phase.startswith("before the head"):
            await hangup.seen.wait()
            await self._turns()
            return
        assert b" 200 " in await client.until(b"\r\n\r\n")
        match hangup.phase:
            case "in the middle":
                await client.until(b'"content":"r')
            case "while it streams":
                await client.until(b": %d\n" % self._dice.randrange(30))
            case "as it ends":
                await client.until(b'"finish_reason":"stop"')
                await self._turns()
            case "after the end":
                await client.until(b"\r\n0\r\n\r\n")
                hangup.acknowledged = True

    def _request(self, hangup: Hangup) -> tuple[bytes, tuple[bytes, ...]]:
        question = {"role": "user", "content": f"question {hangup.number}"}
        body = orjson.dumps({"model": "m", "stream": hangup.stream, "messages": [question]})
        named = (
            (b"X-OM-Thread: " + hangup.thread.encode(), b"X-OM-History: new")
            if hangup.thread
            else ()
        )
        return body, (b"X-Number: %d" % hangup.number, *named)

    async def _turns(self, most: int = 20) -> None:
        """Of the loop: one of them is the one in which it hurts."""
        for _ in range(self._dice.randrange(most)):
            await asyncio.sleep(0)

    async def _moment(self) -> None:
        await asyncio.sleep(self._dice.uniform(0, 0.02))

    async def succeeds(self, number: int) -> bool:
        """One ordinary request."""
        client = await RawClient.connect(self._port)
        try:
            async with asyncio.timeout(self._patience):
                client.send(b'{"model":"m","messages":[]}', headers=(b"X-Number: %d" % number,))
                got = await client.answer()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            return False
        finally:
            client.leave()
        return (got.status, got.whole, got.body) == (200, True, Content("fine", False).completion)
