"""Bent requests by the thousand, sent to a live proxy with memory on; what must hold of every answer, and of the proxy after all.

A case has failed when an error of ours is a 5xx, when an answer is cut off, or when neither an answer nor the connection's end
comes. A request of which nobody can tell where it ends is over by the server's own limits, which are short here.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import orjson

from tests.agents.scripted_llm import bullets
from tests.e2e.between import COMPLETION, EVENTS, chat_body
from tests.e2e.bounds.serving import Proxy, proxied
from tests.e2e.fuzz.bending import bent, pieces
from tests.support.raw_client import ask
from tests.support.upstream_server import SSE_HEAD, Call, UpstreamServer, answering, chunk, upstream_server

LIMITS = "{header_timeout: 500ms, body_timeout: 500ms, write_timeout: 2s}"
HANG = 10.0  # seconds; the limits take one, and a machine may be slow
AT_ONCE = 64
EPOCH = 500  # cases with the same threads: these get long, and are forked at every turn
WARM = 0.2  # of the cases, before memory is measured: what is remembered at all is remembered by then
OURS = b'"type":"om_error"'
NOTES = orjson.dumps({"choices": [{"message": {"content": bullets("the dock takes no van above 2.85 m")}}]})


async def model(call: Call) -> None:
    """Answers whatever it is asked, streams to who asks for a stream, and takes notes."""
    if b'"observer"' in call.seen.body:
        await answering(NOTES)(call)
    elif b'"stream":true' in call.seen.body:
        call.send(SSE_HEAD + b"".join(map(chunk, (*EVENTS, b""))))
    elif call.seen.line.startswith(b"HEAD"):
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
    else:
        await answering(COMPLETION, b"Content-Type: application/json")(call)


@dataclass
class Told:
    """Of many cases."""

    cases: int = 0
    answers: Counter[str] = field(default_factory=Counter)  # by status, or `none`
    degraded: Counter[str] = field(default_factory=Counter)  # by reason
    wrong: list[tuple[str, int]] = field(default_factory=list)  # what, and in which case
    slowest: float = 0.0
    grown: int = 0  # MiB
    seconds: float = 0.0


@asynccontextmanager
async def target(folder: Path) -> AsyncIterator[tuple[UpstreamServer, Proxy]]:
    """A proxy whose memory is small, so that everything it does is done often."""
    async with upstream_server(model) as server:
        more = f"""
        upstream: [{{base_url: "{server.base}"}}]
        memory: {{model: openai/observer, api_base: "{server.base}", api_key: sk-observer,
                  observation: {{message_tokens: 1000, buffer_tokens: 200, block_timeout: 500ms}},
                  reflection: {{observation_tokens: 2000}}}}
        """
        async with proxied(folder, server, LIMITS, more) as proxy:
            yield server, proxy


def case(seed: int, number: int) -> tuple[list[bytes], bool]:
    """What is sent, packet by packet, and whether the client then waits for an answer."""
    dice = Random(f"{seed}/{number}")
    return pieces(bent(dice, number // EPOCH), dice), dice.random() < 0.95


async def attempted(port: int, seed: int, number: int, told: Told) -> None:
    packets, patient = case(seed, number)
    begun = time.monotonic()
    try:
        async with asyncio.timeout(HANG):
            got = await answered(port, packets, patient=patient)
    except TimeoutError:
        told.wrong.append(("no end", number))
        got = b""
    told.cases += 1
    told.slowest = max(told.slowest, time.monotonic() - begun)
    for what in judged(got, told) if patient else ():
        told.wrong.append((what, number))


async def answered(port: int, packets: list[bytes], *, patient: bool) -> bytes:
    """All that comes until the server closes, which it is asked to when an answer has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        for packet in packets:
            writer.write(packet)
            await asyncio.sleep(0)
        while patient and not whole(got) and (data := await reader.read(65_536)):
            got += data
    except ConnectionError:
        return got
    finally:
        writer.transport.abort()
    return got


def whole(got: bytes) -> bool:
    """Whether the first answer is complete. An answer to HEAD looks as if it were not, and ends with the connection."""
    head, end, body = got.partition(b"\r\n\r\n")
    if not end:
        return False
    if head.startswith(b"HTTP/1.1 100"):
        return whole(body)
    lowered = head.lower()
    if b"transfer-encoding: chunked" in lowered:
        return body.endswith(b"0\r\n\r\n")
    length = lowered.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return not length or len(body) >= int(length)


def judged(got: bytes, told: Told) -> list[str]:
    """What is wrong with an answer."""
    while got.startswith(b"HTTP/1.1 100"):
        got = got.partition(b"\r\n\r\n")[2]
    status = got[9:12].decode("ascii", "replace") if got.startswith(b"HTTP/1.1 ") else "none"
    told.answers[status] += 1
    head = got.partition(b"\r\n\r\n")[0]
    if b"x-om-status: degraded" in head:
        told.degraded[head.partition(b"x-om-reason: ")[2].partition(b"\r\n")[0].decode()] += 1
    if got and status == "none":
        return [f"no HTTP: {got[:40]!r}"]
    if status.startswith("5") and status != "501":  # a WebSocket is not relayed, and that is the answer
        return [f"{status}: {got[-200:]!r}"]
    return []


async def fuzzed(folder: Path, cases: int, seed: int, first: int = 0) -> Told:
    """So many cases, `AT_ONCE` at a time; and then the proxy serves as before."""
    told, begun = Told(), time.monotonic()
    async with target(folder) as (server, proxy):
        numbers = iter(range(first, first + cases))
        before = 0

        async def some() -> None:
            nonlocal before
            for number in numbers:
                await attempted(proxy.port, seed, number, told)
                server.seen.clear()
                if told.cases % 10_000 == 0:
                    print(f"{told.cases} cases, {proxy.resident()} MiB", file=sys.stderr, flush=True)
                if not before and told.cases >= WARM * cases:
                    before = proxy.resident()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        await proxy.rests()
        told.grown = proxy.resident() - before
        good = await ask(proxy.port, chat_body("hi"), headers=(b"X-OM-Thread: good",))
        if (good.status, good.body) != (200, COMPLETION):
            told.wrong.append(("the good request afterwards", -1))
    told.seconds = time.monotonic() - begun
    return told


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    options.add_argument("--cases", type=int, default=100_000, help="how many (%(default)s)")
    options.add_argument("--seed", type=int, default=0, help="of the dice (%(default)s)")
    options.add_argument("--first", type=int, default=0, help="number of the first one (%(default)s)")
    options.add_argument("--show", type=int, help="do none, and show what this one sends")
    asked = options.parse_args()
    if asked.show is not None:
        print(*case(asked.seed, asked.show)[0], sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(fuzzed(Path(folder), asked.cases, asked.seed, asked.first))
    print(f"{told.cases} cases in {told.seconds:.0f} s, the slowest {told.slowest:.1f} s; memory {told.grown:+d} MiB")
    print("answers:", dict(sorted(told.answers.items())), "degraded:", dict(told.degraded))
    for what, number in told.wrong[:40]:
        print(f"case {number}: {what}")
    print(f"{len(told.wrong)} wrong")
    return 1 if told.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
