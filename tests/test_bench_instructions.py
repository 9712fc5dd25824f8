"""`scripts/bench instructions`: what is played and how its figures are read. Callgrind itself is
not run here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.bench.instructions import TOTAL_PATTERN, Span, count_request, play, render_counts
from tests.bench.loads import write_request


@contextmanager
def serve_status(status: int) -> Iterator[tuple[int, Counter[bytes]]]:
    """A server that answers every request with this status, and counts the requests of each
    body."""
    seen: Counter[bytes] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            seen[self.rfile.read(int(self.headers["content-length"]))] += 1
            self.send_response(status)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # closing it waits for them

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port, seen
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("connections", [1, 3])
def test_each_request_is_played_once(connections: int) -> None:
    bodies = [b"%d" % number for number in range(7)]
    with serve_status(200) as (port, seen):
        requests = [write_request(port, body, (), 0) for body in bodies]
        answered: list[int] = []
        play(requests, port, connections, 3, lambda: answered.append(seen.total()))
    assert seen == Counter(bodies)
    assert answered == [3, 6, 7]


def test_a_refusal_ends_the_run() -> None:
    with serve_status(503) as (port, _), pytest.raises(RuntimeError, match="503"):
        play([write_request(port, b"x", (), 0)], port, 1, 1, lambda: None)


def test_what_an_idle_server_runs_is_no_part_of_a_request() -> None:
    """Nor is what comes once in a while: a write of 9 000 in one part, another while idle."""
    parts = [Span(2_000 + 200, 2.0), Span(2_000 + 200 + 9_000, 2.0), Span(2_000 + 400, 4.0)]
    idle = [Span(100, 1.0), Span(50, 0.5), Span(9_100, 1.0)]
    assert count_request(parts, idle, 20) == 100.0


def test_a_count_stands_beside_those_of_other_checkouts() -> None:
    assert render_counts([200.0]) == ["200.0"]
    assert render_counts([200.0, 250.0, 205.0]) == ["200.0 (+2.5%)", "250.0 (-18.0%)", "205.0"]


def test_the_total_is_read_from_a_dump() -> None:
    dump = "version: 1\nevents: Ir\nsummary: 5\n\nfn=(1) x\n1 7\n\ntotals: 12\n"
    assert TOTAL_PATTERN.findall(dump) == ["5", "12"]
