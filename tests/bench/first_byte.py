"""Whether comments before a stream make its first byte come later: `X-OM-Events` not sent, `inline`,
and `inline,text`, in turns.

Each choice has a thread of its own with the same notes, and plays real turns on it. A round asks
once with each choice, the first one changing with the round, so what the machine does meanwhile
happens to all. The model server answers at once: nothing hides the time that comments take.
Measured is the time from the request's last byte to the first byte of the body, and, round by
round, how much more that is than without the header. Everything binds 127.0.0.1 and ends by itself.

On a busy machine these times say nothing. So the CPU time of writing the comments is told too: a
first byte cannot come later by more than that, since nothing waits for anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from om_proxy.engine.event_feed.inline import InlineEvents
from om_proxy.memory.events.changes import Subject
from om_proxy.memory.events.parts import Activation, Event, MarkerConfig
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Key, Memory
from tests.bench.long_thread import START_TIMEOUT_S, WINDOW, headers, proxy, said, seed

CHOICES = ("none", "inline", "inline,text")
MESSAGES = 100  # of each thread, all but the newest of them observed
WARM_UP_ROUNDS = 20
ACCEPTED_MS = 0.1


class Figures(NamedTuple):
    """Of one choice, in milliseconds. `later_ms`: the median of the rounds' differences to no
    comments; `low_ms` and `high_ms` enclose the middle half of them."""

    choice: str
    p50_ms: float
    later_ms: float
    low_ms: float
    high_ms: float


def summarize(times_ms: Mapping[str, Sequence[float]]) -> Iterator[Figures]:
    """Yield the figures of each choice. The times of a round have the same place in each list."""
    without = times_ms[CHOICES[0]]
    for choice, times in times_ms.items():
        later = [with_ms - ms for with_ms, ms in zip(times, without, strict=True)]
        low, middle, high = statistics.quantiles(later, n=4)
        yield Figures(choice, statistics.median(times), middle, low, high)


class StreamingModel(BaseHTTPRequestHandler):
    """Answers each request at once with a stream of three events."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        delta = {"role": "assistant", "content": f"{time.time_ns()}: and so on."}
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        for choice in (
            {"index": 0, "delta": delta, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        ):
            self._send(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")
        self._send(b"data: [DONE]\n\n")
        self._send(b"")

    def _send(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


@contextmanager
def streaming_model() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StreamingModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


class Talker:
    """A client that goes on with one thread, with one choice of comments."""

    def __init__(self, port: int, number: int, choice: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=60)
        self._choice = choice
        self._headers = headers(f"{MESSAGES}-{number}")
        if choice != CHOICES[0]:
            self._headers["x-om-events"] = choice
        self._window = [json.loads(said(n)) for n in range(MESSAGES - WINDOW + 1, MESSAGES + 1)]

    def measure_turn(self, number: int) -> float:
        """Play one turn, and return the milliseconds up to the first byte of its reply."""
        self._window.append({"role": "user", "content": f"turn {number}: go on"})
        body = json.dumps({"model": "m", "messages": self._window, "stream": True})
        self._connection.request("POST", "/v1/chat/completions", body, self._headers)
        sent_at = time.perf_counter()
        answer = self._connection.getresponse()
        first = answer.read(1)
        time_ms = 1_000 * (time.perf_counter() - sent_at)
        reply = first + answer.read()
        assert answer.headers["x-om-status"] == "applied", dict(answer.headers)
        assert reply.startswith(b": om ") == (self._choice != CHOICES[0]), reply[:200]
        events = [line[6:] for line in reply.split(b"\n") if line.startswith(b"data: {")]
        message = json.loads(events[0])["choices"][0]["delta"]
        self._window = [*self._window, message][-WINDOW:]
        return time_ms


def wait_loaded(port: int) -> None:
    """Wait until the proxy has loaded what its first request with memory needs."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/readyz")
        if connection.getresponse().status == HTTPStatus.OK:
            return
        time.sleep(0.1)
    raise TimeoutError("the proxy did not become ready")


def measure_rounds(port: int, rounds: int) -> dict[str, list[float]]:
    talkers = {choice: Talker(port, number, choice) for number, choice in enumerate(CHOICES)}
    times_ms: dict[str, list[float]] = {choice: [] for choice in CHOICES}
    for number in range(WARM_UP_ROUNDS + rounds):
        first = number % len(CHOICES)
        for choice in (*CHOICES[first:], *CHOICES[:first]):
            time_ms = talkers[choice].measure_turn(number)
            if number >= WARM_UP_ROUNDS:
                times_ms[choice].append(time_ms)
    return times_ms


def measure_writing(calls: int) -> Iterator[str]:
    """Yield the CPU time of writing the comments of one request: of the status alone, and with
    notes that fill MAX_INLINE_BYTES."""
    memory = Memory(key=Key("tenant", "resource", "thread"))
    limits, config = Limits(), MarkerConfig(30_000, 40_000, "thread")
    subject = Subject("0123456789abcdef", "thread", config)
    memories: Any = SimpleNamespace(events=SimpleNamespace(describe_subject=lambda _: subject))
    events = InlineEvents(memories)
    note = "* (10:00) The crate is red and goes to the dock at Quarry Steps.\n" * 230
    for name, told in (("status alone", []), ("with notes", [_build_activation(note)])):
        times_us = []
        for _ in range(calls):
            started = time.thread_time_ns()
            written = events.write(memory, limits, told, with_text=True)
            times_us.append((time.thread_time_ns() - started) / 1_000)
        assert len(told) == written.count(b"data-om-activation")
        yield f"{name:12} {statistics.median(times_us):7.1f} µs CPU ({len(written):,} bytes)"


def _build_activation(note: str) -> Event:
    part = Activation(
        record_id="0123456789abcdef.g0",
        thread_id="thread",
        cycle_id="cycle",
        operation_type="observation",
        activated_at="2026-03-02T10:00:00.000Z",
        chunks_activated=1,
        tokens_activated=9_000,
        observation_tokens=3_000,
        messages_activated=40,
        generation_count=0,
        observations=note,
        config=MarkerConfig(30_000, 40_000, "thread"),
    )
    return Event(1.7e9, part)


def main() -> None:
    options = argparse.ArgumentParser(prog="scripts/bench first-byte", description=__doc__)
    options.add_argument("--rounds", type=int, default=400, help="turns with each choice")
    options.add_argument("--calls", type=int, default=2_000, help="of writing the comments")
    chosen = options.parse_args()
    for line in measure_writing(chosen.calls):
        print(line, flush=True)
    with tempfile.TemporaryDirectory(prefix="om-bench-") as name, streaming_model() as upstream:
        folder = Path(name)
        asyncio.run(seed(f"{folder}/om.db", [MESSAGES], len(CHOICES)))
        with proxy(folder, upstream) as (port, _):
            wait_loaded(port)
            figures = list(summarize(measure_rounds(port, chosen.rounds)))
    for one in figures:
        print(
            f"{one.choice:12} p50 {one.p50_ms:7.3f} ms   later by {one.later_ms:+.3f} ms"
            f" (half of the rounds: {one.low_ms:+.3f} … {one.high_ms:+.3f})"
        )
    print(f"accepted: {ACCEPTED_MS} ms later at most")
    sys.exit(any(one.later_ms > ACCEPTED_MS for one in figures))


if __name__ == "__main__":
    main()
