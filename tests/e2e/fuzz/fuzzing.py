"""Bent requests by the thousand, sent to a live proxy with memory on; what must hold of every
answer, and of the proxy after all.

A case has failed when its answer is a 5xx, is none, or is cut off before the end its own framing
announces, or when neither an answer nor the connection's end comes. A request of which nobody can
tell where it ends is over by the server's own limits, which are short here. No answer is due only
to a client that sent nothing at all, that left, or whose connection was reset while it was still
sending: what has come by then is lost to it. All cases together have failed when the proxy grew by
more than `GROWN` MiB.

Not judged: what comes after the first answer, and where an answer ends that announces no length and
is not in chunks.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import orjson

from tests.agents.scripted_llm import bullets
from tests.e2e.bounds.serving import Proxy, proxied
from tests.e2e.fuzz.bending import bent, pieces
from tests.e2e.raw_upstream import COMPLETION, EVENTS, chat_body
from tests.support.raw_client import ask
from tests.support.upstream_server import (
    SSE_HEAD,
    Call,
    UpstreamServer,
    chunk,
    run_upstream_server,
    script_answer,
)

LIMITS = "{header_timeout: 1s, body_timeout: 1s, write_timeout: 2s}"
HANG = 30.0  # seconds; the limits take two, and a machine may be slow
AT_ONCE = 64
EPOCH = 500  # cases with the same threads: these get long, and are forked at every turn
# of the cases, before memory is measured: what is remembered at all is remembered by then
WARM = 0.2
GROWN = 32  # MiB, of a proxy that is warm
CHUNK = re.compile(rb"([0-9a-fA-F]+)(?:;[^\r\n]*)?\r\n")  # its size, and what follows that is data
NOTES = orjson.dumps(
    {"choices": [{"message": {"content": bullets("the dock takes no van above 2.85 m")}}]}
)


async def model(call: Call) -> None:
    """Answers whatever it is asked, streams to who asks for a stream, and takes notes."""
    if b'"observer"' in call.seen.body:
        await script_answer(NOTES)(call)
    elif b'"stream":true' in call.seen.body:
        call.send(SSE_HEAD + b"".join(map(chunk, (*EVENTS, b""))))
    elif call.seen.line.startswith(b"HEAD"):
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
    else:
        await script_answer(COMPLETION, b"Content-Type: application/json")(call)


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
    async with run_upstream_server(model) as server:
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
    await asyncio.sleep(0)  # the cases beside it are made before their time begins to run
    begun = time.monotonic()
    try:
        async with asyncio.timeout(HANG):
            got = await answered(port, packets, patient=patient)
    except TimeoutError:
        told.wrong.append(("no end", number))
        got = None
    told.cases += 1
    told.slowest = max(told.slowest, time.monotonic() - begun)
    if got is None:
        told.answers["none"] += 1
    elif patient:
        told.wrong += [(what, number) for what in judged(b"".join(packets), got, told)]


async def answered(port: int, packets: list[bytes], *, patient: bool) -> bytes | None:
    """All that comes until an answer is whole, or the server closes. None: reset by the server
    before all was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.create_task(sent(writer, packets))
    request, got = b"".join(packets), b""
    try:
        while patient and not whole(request, got) and (data := await reader.read(65_536)):
            got += data
        await asyncio.wait((sending,))
    except ConnectionError:
        return got if sending.done() and sending.result() else None
    finally:
        sending.cancel()
        writer.transport.abort()
    return got


async def sent(writer: asyncio.StreamWriter, packets: list[bytes]) -> bool:
    """Whether the connection stood until the last of them."""
    for packet in packets:
        if writer.transport.is_closing():
            return False
        writer.write(packet)
        await asyncio.sleep(0)
    return not writer.transport.is_closing()


def whole(request: bytes, got: bytes) -> bool:
    """Whether the first answer is complete, as far as can be told before the connection ends."""
    head, end, body = got.partition(b"\r\n\r\n")
    if not end:
        return False
    if head.startswith(b"HTTP/1.1 100"):
        return whole(request, body)
    lines = (line.lower().partition(b":") for line in head.split(b"\r\n")[1:])
    framing = {name: value.strip() for name, _, value in lines}
    if request.lstrip(b"\r\n").startswith(b"HEAD "):
        return True
    if b"transfer-encoding" in framing:
        return ended(body)
    return len(body) >= int(framing.get(b"content-length", 0))


def ended(body: bytes) -> bool:
    """Whether the last chunk is there. What is not even a chunk has no end."""
    while match := CHUNK.match(body):
        size, after = int(match[1], 16), match.end()
        if body[after + size : after + size + 2] != b"\r\n":
            return False
        if not size:
            return True
        body = body[after + size + 2 :]
    return False


def judged(request: bytes, got: bytes, told: Told) -> list[str]:
    """What is wrong with the answer to a request whose client waited for it."""
    complete = whole(request, got)
    while got.startswith(b"HTTP/1.1 100"):
        got = got.partition(b"\r\n\r\n")[2]
    status = got[9:12].decode("ascii", "replace") if got.startswith(b"HTTP/1.1 ") else "none"
    told.answers[status] += 1
    head = got.partition(b"\r\n\r\n")[0]
    if b"x-om-status: degraded" in head:
        told.degraded[head.partition(b"x-om-reason: ")[2].partition(b"\r\n")[0].decode()] += 1
    if not got:
        return ["no answer"] if request else []
    if status == "none":
        return [f"no HTTP: {got[:40]!r}"]
    if (
        status.startswith("5") and status != "501"
    ):  # a WebSocket is not relayed, and that is the answer
        return [f"{status}: {got[-200:]!r}"]
    return [] if complete else [f"cut off: {got[-200:]!r}"]


def faults(told: Told) -> list[str]:
    """One line for each thing that is wrong."""
    found = [f"case {number}: {what}" for what, number in told.wrong]
    return (
        [*found, f"memory grew by {told.grown} MiB, more than {GROWN}"]
        if told.grown > GROWN
        else found
    )


async def fuzzed(folder: Path, cases: int, seed: int, first: int = 0) -> Told:
    """So many cases, `AT_ONCE` at a time; and then the proxy serves as before."""
    told, begun = Told(), time.monotonic()
    warm, end = first + round(WARM * cases), first + cases
    async with target(folder) as (server, proxy):

        async def some(numbers: Iterator[int]) -> None:
            for number in numbers:
                await attempted(proxy.port, seed, number, told)
                server.seen.clear()
                if told.cases % 10_000 == 0:
                    print(
                        f"{told.cases} cases, {proxy.resident()} MiB", file=sys.stderr, flush=True
                    )

        async def resident_after(numbers: Iterator[int]) -> int:
            await asyncio.gather(*(some(numbers) for _ in range(AT_ONCE)))
            await proxy.rests()
            return proxy.resident()

        before = await resident_after(iter(range(first, warm)))
        told.grown = await resident_after(iter(range(warm, end))) - before
        good = await ask(proxy.port, chat_body("hi"), headers=(b"X-OM-Thread: good",))
        if (good.status, good.body) != (200, COMPLETION):
            told.wrong.append(("the good request afterwards", -1))
    told.seconds = time.monotonic() - begun
    return told


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    options.add_argument("--cases", type=int, default=100_000, help="how many (%(default)s)")
    options.add_argument("--seed", type=int, default=0, help="of the dice (%(default)s)")
    options.add_argument(
        "--first", type=int, default=0, help="number of the first one (%(default)s)"
    )
    options.add_argument("--show", type=int, help="do none, and show what this one sends")
    asked = options.parse_args()
    if asked.show is not None:
        print(*case(asked.seed, asked.show)[0], sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(fuzzed(Path(folder), asked.cases, asked.seed, asked.first))
    print(
        f"{told.cases} cases in {told.seconds:.0f} s, the slowest {told.slowest:.1f} s; memory {told.grown:+d} MiB"
    )
    print("answers:", dict(sorted(told.answers.items())), "degraded:", dict(told.degraded))
    found = faults(told)
    print(*found[-40:], f"{len(found)} wrong", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
