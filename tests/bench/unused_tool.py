"""What `memory.retrieval` costs a request for which nothing is looked up: off and on, in turns.

Two servers have the same threads with notes; one of them offers the tool for look-ups, which no
reply calls. A round asks both once, the first one changing with the round, so what the machine does
meanwhile happens to both. Played are retries and real turns, as streams and as JSON, by a client
that sends its whole history. The model server stands in this process and answers at once; an event
of a stream comes when the client has the one before, so each comes by itself.

Measured are, from the request's last byte on, the first byte of the reply and its last one; what
lies between the model server's last byte and the client's: the end of a reply waits for the commit;
and the CPU of the server's process, work after the reply included. `--count` counts instructions by
callgrind instead: a load does not change them. Everything binds 127.0.0.1 and ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.first_byte import wait_loaded
from tests.bench.instructions import (
    IDLE_PART_S,
    IDLE_PARTS,
    Span,
    SpanCounter,
    control_callgrind,
    count_request,
)
from tests.bench.long_thread import find_command, headers, proxy, said, seed
from tests.bench.table import aligned

REQUEST_KINDS = ("retry json", "retry stream", "turn json", "turn stream")
STATES = ("off", "on")
FIGURES = ("cpu_us", "first_us", "last_us", "end_us")
MESSAGES = 100  # of each thread, 60 of them observed
TURNS_OF_A_THREAD = 20
WARM_ROUNDS = 20
WARM_PARTS, REQUESTS_OF_A_PART = 2, 20
EVENTS = 20  # of a stream, without its end
# no notes come due meanwhile
MEMORY_SETTINGS = {"observation": {"message_tokens": 10**9, "buffer_tokens": False}}
CALLGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no")
ACCEPTED_SHARE = 0.05


class Server(NamedTuple):
    """A proxy that is measured. `profile`: the file that callgrind writes."""

    port: int
    pid: int
    profile: Path


class Sample(NamedTuple):
    """What one request took, in microseconds. `end_us`: from the model server's last byte on."""

    cpu_us: float
    first_us: float
    last_us: float
    end_us: float


class Change(NamedTuple):
    """A figure of one kind of request: its medians, and the median of the rounds' differences as a
    share of the first; `low` and `high` enclose the middle half of them."""

    name: str
    off: float
    on: float
    share: float
    low: float
    high: float


def compare(name: str, off: Sequence[float], on: Sequence[float]) -> Change:
    """Compare a figure of the same rounds."""
    base = statistics.median(off)
    differences = [with_tool - without for without, with_tool in zip(off, on, strict=True)]
    low, middle, high = (one / base for one in statistics.quantiles(differences, n=4))
    return Change(name, base, statistics.median(on), middle, low, high)


# ── the model server ──────────────────────────────────────────────────────────────────────────────


class Model:
    """Answers by the newest question, so that a retry gets the same reply. `ended_at`: when it sent
    the last byte of its newest reply."""

    def __init__(self) -> None:
        self.ended_at = 0.0
        self.next_event = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with connection:
            while part := connection.recv(1 << 18):
                data += part
                head, end, body = data.partition(b"\r\n\r\n")
                if end and len(body) >= read_length(head):
                    data = b""
                    self._answer(connection, body)

    def _answer(self, connection: socket.socket, body: bytes) -> None:
        text = f"{body.rpartition(b'turn ')[2].partition(b':')[0].decode()}: and so on."
        if b'"stream":true' in body:
            self._stream(connection, text)
            return
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = json.dumps({"id": "x", "model": "m", "choices": [choice]}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.ended_at = time.perf_counter()
        connection.sendall(head % len(reply) + reply)

    def _stream(self, connection: socket.socket, text: str) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head + write_event({"role": "assistant", "content": text}))
        for number in range(1, EVENTS):
            self.next_event.acquire()
            connection.sendall(write_event({"content": f" token{number}"}))
        self.next_event.acquire()
        last = write_event({}, "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        self.ended_at = time.perf_counter()
        connection.sendall(last)


def write_event(delta: Mapping[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    event = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def read_length(head: bytes) -> int:
    found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return int(found[1]) if found else 0


# ── the client ────────────────────────────────────────────────────────────────────────────────────


class Talker:
    """A client of one server that plays one kind of request. `first_thread`: the number of the
    first of its own threads."""

    def __init__(
        self, server: Server, model: Model, state: str, kind: str, first_thread: int
    ) -> None:
        self._server = server
        self._model = model
        self._offers = b"x-om-recall: offered" if state == "on" else b""
        self._plays_turns = kind.startswith("turn")
        self._is_stream = kind.endswith("stream")
        self._thread = first_thread
        self._turn = 0
        self._history: list[Mapping[str, Any]] = []
        # opened for the first request: an idle connection would be closed meanwhile
        self._opened: socket.socket | None = None
        self._request = self._write_request()

    @property
    def _connection(self) -> socket.socket:
        if self._opened is None:
            self._opened = socket.create_connection(("127.0.0.1", self._server.port))
            self._opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._opened

    def ask(self) -> Sample:
        cpu_us = read_cpu_us(self._server.pid)
        sent_at = time.perf_counter()
        self._connection.sendall(self._request)
        first_at, reply = self._read_reply()
        last_at = time.perf_counter()
        end_us = (last_at - self._model.ended_at) * 1e6
        self._end_round(reply)
        cpu_us = read_cpu_us(self._server.pid) - cpu_us
        return Sample(cpu_us, (first_at - sent_at) * 1e6, (last_at - sent_at) * 1e6, end_us)

    def _read_reply(self) -> tuple[float, bytes]:
        """Return when the first byte came, and the body."""
        data = self._receive()
        first_at = time.perf_counter()
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        check_head(head, self._offers)
        if not self._is_stream:
            length = read_length(head)
            while len(body) < length:
                body += self._receive()
            return first_at, body
        released = 0
        while not body.endswith(b"0\r\n\r\n"):
            while released < min(body.count(b"\n\n"), EVENTS):
                self._model.next_event.release()
                released += 1
            body += self._receive()
        return first_at, body

    def _receive(self) -> bytes:
        data = self._connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the proxy closed the connection")
        return data

    def _end_round(self, reply: bytes) -> None:
        if not self._plays_turns:
            return
        self._history.append({"role": "assistant", "content": join_text(reply)})
        self._turn += 1
        if self._turn % TURNS_OF_A_THREAD == 0:
            self._thread += 1
            self._history = []
        self._request = self._write_request()

    def _write_request(self) -> bytes:
        if not self._history:
            self._history = [json.loads(said(n + 1)) for n in range(MESSAGES)]
        self._history.append({"role": "user", "content": f"turn {self._turn}: go on"})
        members = {"model": "m", "stream": self._is_stream, "messages": self._history}
        body = json.dumps(members, separators=(",", ":")).encode()
        lines = {**headers(f"{MESSAGES}-{self._thread}"), "content-length": len(body)}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        start = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self._server.port}\r\n"
        return f"{start}{head}\r\n".encode() + body


def check_head(head: bytes, offers: bytes) -> None:
    """Raise AssertionError unless the prompt had notes, and the tool where it is on."""
    assert head.startswith(b"HTTP/1.1 200"), head
    assert b"x-om-status: applied" in head, head
    assert (offers or b"x-om-recall") in head if offers else b"x-om-recall" not in head, head


def join_text(reply: bytes) -> str:
    """Return the text of a reply, as JSON or as a stream."""
    if reply.startswith(b"{"):
        message: str = json.loads(reply)["choices"][0]["message"]["content"]
        return message
    found = re.findall(rb"data: (\{.*\})", reply)
    return "".join(json.loads(one)["choices"][0]["delta"].get("content", "") for one in found)


def read_cpu_us(pid: int) -> float:
    """Microseconds of CPU that all threads of a process have used."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue  # the thread has ended
    return total_ns / 1_000


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def serve_states(model: Model, threads: int, *, is_counted: bool) -> Iterator[list[Server]]:
    """Two servers over the same threads, without and with the tool."""
    with tempfile.TemporaryDirectory(prefix="om-bench-") as name, ExitStack() as servers:
        folders = [Path(name) / state for state in STATES]
        for folder in folders:
            folder.mkdir()
        asyncio.run(seed(f"{folders[0]}/om.db", [MESSAGES], threads))
        shutil.copy(folders[0] / "om.db", folders[1] / "om.db")
        served = []
        for folder, state in zip(folders, STATES, strict=True):
            memory = {**MEMORY_SETTINGS, "retrieval": state == "on"}
            if state == "on":
                fill_index(folder, memory)
            profile = folder / "callgrind.out"
            wrapper = (*CALLGRIND, f"--callgrind-out-file={profile}") if is_counted else ()
            port, pid = servers.enter_context(proxy(folder, model.port, memory, wrapper))
            served.append(Server(port, pid, profile))
        for one in served:
            wait_loaded(one.port)
        yield served


def fill_index(folder: Path, memory: Mapping[str, Any]) -> None:
    """Index what was seeded: else the background would do so while it is measured. Turns that are
    played are indexed in the background, as ever."""
    settings = folder / "index.yaml"
    storage = {"url": f"sqlite:///{folder}/om.db"}
    settings.write_text(json.dumps({"storage": storage, "memory": memory}))
    command = [find_command(), "store", "index", "--config", settings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def create_talkers(
    served: Sequence[Server], model: Model, kinds: Sequence[str], threads_of_a_kind: int
) -> dict[str, list[Talker]]:
    return {
        kind: [
            Talker(one, model, state, kind, number * threads_of_a_kind)
            for one, state in zip(served, STATES, strict=True)
        ]
        for number, kind in enumerate(kinds)
    }


def measure_times(
    talkers: Mapping[str, Sequence[Talker]], rounds: int
) -> Iterator[tuple[str, list[Change]]]:
    """Yield the figures of each kind."""
    samples: dict[str, tuple[list[Sample], list[Sample]]] = {kind: ([], []) for kind in talkers}
    for number in range(WARM_ROUNDS + rounds):
        order = (0, 1) if number % 2 else (1, 0)
        for kind, both in talkers.items():
            for place in order:
                sample = both[place].ask()
                if number >= WARM_ROUNDS:
                    samples[kind][place].append(sample)
    for kind, (off, on) in samples.items():
        yield (
            kind,
            [
                compare(name, [s[place] for s in off], [s[place] for s in on])
                for place, name in enumerate(FIGURES)
            ],
        )


def count_instructions(
    talkers: Mapping[str, Sequence[Talker]], counters: Sequence[SpanCounter], counted_parts: int
) -> Iterator[tuple[str, list[Change]]]:
    """Yield the thousand instructions of a request of each kind."""
    for kind, both in talkers.items():
        parts: list[list[Span]] = [[], []]
        for number in range(WARM_PARTS + counted_parts):
            for place in (0, 1) if number % 2 else (1, 0):
                counters[place].count()  # what it ran while the other one was asked
                for _ in range(REQUESTS_OF_A_PART):
                    both[place].ask()
                parts[place].append(counters[place].count())
        idle: list[list[Span]] = [[], []]
        for _ in range(IDLE_PARTS):
            time.sleep(IDLE_PART_S)
            for place in (0, 1):
                idle[place].append(counters[place].count())
        off, on = (
            [count_request([part], idle[place], REQUESTS_OF_A_PART) / 1_000 for part in counted]
            for place, counted in enumerate(one[WARM_PARTS:] for one in parts)
        )
        yield kind, [compare("thousand instructions", off, on)]


def render(changes: Sequence[tuple[str, Sequence[Change]]]) -> str:
    lines = [["", "", "off", "on", "more by", "half of the rounds"]]
    for kind, found in changes:
        for one in found:
            spread = f"{one.low:+.1%} … {one.high:+.1%}"
            numbers = (f"{one.off:.0f}", f"{one.on:.0f}", f"{one.share:+.1%}")
            lines.append([kind, one.name, *numbers, spread])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(aligned(line, widths) for line in lines)


def main() -> None:
    options = argparse.ArgumentParser(
        prog="scripts/bench unused-tool",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--rounds", type=int, default=400, help="requests of each kind, timed")
    options.add_argument("--count", action="store_true", help="count instructions by callgrind")
    options.add_argument(
        "--parts", type=int, default=8, help=f"of {REQUESTS_OF_A_PART} requests, counted"
    )
    options.add_argument("--kinds", default=",".join(REQUEST_KINDS))
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end too
    kinds = chosen.kinds.split(",")
    requests = WARM_ROUNDS + chosen.rounds
    if chosen.count:
        requests = (WARM_PARTS + chosen.parts) * REQUESTS_OF_A_PART
    threads_of_a_kind = requests // TURNS_OF_A_THREAD + 1
    model = Model()
    threads = threads_of_a_kind * len(kinds)
    with serve_states(model, threads, is_counted=chosen.count) as served:
        talkers = create_talkers(served, model, kinds, threads_of_a_kind)
        if chosen.count:
            counters = [start_counting(one) for one in served]
            found = count_instructions(talkers, counters, chosen.parts)
        else:
            found = measure_times(talkers, chosen.rounds)
        changes = []
        for one in found:
            changes.append(one)
            print(render([one]), flush=True)  # callgrind takes minutes for each kind
    model.close()
    print("", render(changes), sep="\n")
    print(f"accepted: {ACCEPTED_SHARE:.0%} more")
    sys.exit(any(one.share > ACCEPTED_SHARE for _, figures in changes for one in figures))


def start_counting(server: Server) -> SpanCounter:
    control_callgrind(server.pid, "--instr=on")
    return SpanCounter(server.pid, server.profile)


if __name__ == "__main__":
    main()
