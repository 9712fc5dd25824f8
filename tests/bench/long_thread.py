"""How long a turn takes to open on a short thread and on a very long one: cold (first request after
a start) and warm.

With `--whole`, instead: what a turn costs in CPU whose client sends its whole history, all of it raw.

Seeds a store with threads of each length (`--messages`), starts `om-proxy serve` on it, and lets a
client that sends a window of its newest messages go on with each. Measured is the receipt's
`x-om-overhead-ms`: the request read, the memory loaded, reconciled, the prompt assembled.
Everything binds 127.0.0.1 and ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import (
    Item,
    Key,
    Memory,
    Message,
    Observation,
    extend_chain,
    sum_framed_tokens,
)
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.keyed_hashes import fingerprint_key
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.wire.apis.registry import read_item

PROMISED = 1.5  # times the shortest thread's time
TAIL = 40  # raw messages every thread ends with
ENTRIES = 20  # of every log, so that the lengths differ in what is covered and in nothing else
WINDOW = 10  # messages the client shows
START_TIMEOUT_S = 600.0  # of a busy machine, under callgrind
HEADERS = {
    "authorization": "Bearer sk-bench",
    "content-type": "application/json",
    "x-om-resource": "bench",
}


def said(number: int) -> bytes:
    role = "user" if number % 2 else "assistant"
    return json.dumps(
        {"role": role, "content": f"message {number}: " + "so it goes on, word by word. " * 5}
    ).encode()


def headers(thread: str) -> dict[str, str]:
    return HEADERS | {"x-om-thread": thread}


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


async def seed(path: str, lengths: Sequence[int], threads: int) -> None:
    store = await SqliteStore.open(path)
    try:
        secret = await store.secret()
        for length in lengths:
            for number in range(threads):
                sent = [
                    (name.encode(), value.encode())
                    for name, value in headers(f"{length}-{number}").items()
                ]
                key = identify(sent, IdentityRules(), secret).key
                assert key is not None
                await grow(store, key, fingerprint_key(secret, key.tenant), length)
    finally:
        await store.close()


async def grow(store: SqliteStore, key: Key, fingerprints: bytes, length: int) -> None:
    """A thread of `length` messages of which all but the newest TAIL are observed, in ENTRIES
    entries."""
    memory = await store.load(key)
    batch = (length - TAIL) // ENTRIES
    while memory.count < length - TAIL:
        memory = await store.commit(
            memory, heard(memory, fingerprints, min(batch, length - TAIL - memory.count))
        )
        memory = await store.commit(memory, transitions.add_chunk(memory, noted(memory)))
        memory = await store.commit(
            memory, transitions.activate_chunks(memory, [memory.chunks[0].id], time.time())
        )
    await store.commit(memory, replace(heard(memory, fingerprints, TAIL), turns=length // 2))


def heard(memory: Memory, fingerprints: bytes, count: int) -> Memory:
    items = [read_item(said(memory.count + n + 1), fingerprints, "chat") for n in range(count)]
    fresh = tuple(numbered(memory, items))
    return replace(
        memory,
        tail=(*memory.tail, *fresh),
        next_seq=memory.next_seq + count,
        style="window",
        turn_at=time.time(),
    )


def numbered(memory: Memory, items: Sequence[Item]) -> Iterator[Message]:
    seq, chain = memory.next_seq, memory.chain
    for item in items:
        chain = extend_chain(chain, item.fp)
        yield Message(seq, item, chain, 40, time.time())
        seq += 1


def noted(memory: Memory) -> Observation:
    last = memory.tail[-1]
    text = f"* 🔴 (10:00) User went on up to message {last.seq}, word by word, as agreed.\n" * 20
    return Observation(
        id=0,
        after=memory.coverage,
        last=last.seq,
        chain=last.chain,
        text=text,
        tokens=500,
        source_tokens=sum_framed_tokens(memory.tail),
        at=time.time(),
    )


# ── the proxy, and a model that always answers ────────────────────────────────────────────────────


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": f"{time.time_ns()}: and so on."}
        body = json.dumps(
            {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


@contextmanager
def model() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class ServedProxy(NamedTuple):
    """A running `om-proxy serve`."""

    port: int
    pid: int


def find_command() -> str:
    return os.environ.get("OM_PROXY", str(Path(sys.executable).with_name("om-proxy")))


@contextmanager
def proxy(
    folder: Path,
    upstream: int,
    memory: Mapping[str, Any] | None = None,
    wrapper: Sequence[str] = (),
) -> Iterator[ServedProxy]:
    """Serve the folder's store. `memory`: its settings. `wrapper`: the command that runs the proxy,
    such as valgrind with its options."""
    port = find_free_port()
    config = {
        "server": {"port": port},
        "upstream": [{"base_url": f"http://127.0.0.1:{upstream}/v1", "layout": "blocks"}],
        "storage": {"url": f"sqlite:///{folder}/om.db"},
        "telemetry": {"log": "off"},
        "memory": memory or {},
    }
    (folder / "om.yaml").write_text(json.dumps(config))
    command = find_command()
    # a wrapper follows no script to its interpreter
    start = [*wrapper, Path(command).with_name("python"), command] if wrapper else [command]
    process = subprocess.Popen(
        [*start, "serve", "--config", folder / "om.yaml"], stdout=subprocess.DEVNULL
    )
    try:
        wait_ready(port)
        yield ServedProxy(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def wait_ready(port: int) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            with closing(connection):
                connection.request("GET", "/healthz")
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError("the proxy did not start")


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


def overheads(port: int, length: int, number: int, turns: int) -> list[float]:
    """Milliseconds before forwarding, turn by turn, of a client that goes on with the thread."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    window = [json.loads(said(n)) for n in range(length - WINDOW + 1, length + 1)]
    found = []
    for turn in range(turns):
        window.append({"role": "user", "content": f"turn {turn}: go on"})
        body = json.dumps({"model": "m", "messages": window})
        connection.request("POST", "/v1/chat/completions", body, headers(f"{length}-{number}"))
        answer = connection.getresponse()
        reply = json.loads(answer.read())["choices"][0]["message"]
        assert answer.headers["x-om-status"] == "applied", dict(answer.headers)
        found.append(float(answer.headers["x-om-overhead-ms"]))
        window = [*window, reply][-WINDOW:]
    return found


def read_cpu_ms(pid: int) -> float:
    """What all threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e6


def measure_whole(served: ServedProxy, length: int, turns: int) -> float:
    """CPU ms of a turn of a client that sends its whole history; the first request makes it known."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=120)
    history = b",".join(said(number) for number in range(1, length + 1))
    used = []
    for turn in range(turns + 1):
        history += b',{"role":"user","content":"turn %d: go on"}' % turn
        body = b'{"model":"m","messages":[%b]}' % history
        before = read_cpu_ms(served.pid)
        connection.request("POST", "/v1/chat/completions", body, headers(f"whole-{length}"))
        answer = connection.getresponse()
        history += b"," + json.dumps(json.loads(answer.read())["choices"][0]["message"]).encode()
        assert answer.headers["x-om-status"] == "raw", dict(answer.headers)
        used.append(read_cpu_ms(served.pid) - before)
    return statistics.median(used[1:])


def compare_whole(folder: Path, upstream: int, lengths: Sequence[int], turns: int) -> None:
    settings = {"observation": {"message_tokens": 10**9, "buffer_tokens": False}}
    with proxy(folder, upstream, settings) as served:
        shortest = measure_whole(served, lengths[0], turns)
        for length in lengths:
            taken = measure_whole(served, length, turns) if length > lengths[0] else shortest
            print(f"{length:>8} messages   {taken:6.2f} ms of CPU   {taken / shortest:.2f} times")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--messages", default="100,100000", help="lengths of thread, the shortest first"
    )
    options.add_argument("--threads", type=int, default=3, help="threads of each length")
    options.add_argument("--whole", action="store_true", help="the client sends its whole history")
    options.add_argument("--turns", type=int, default=100, help="turns on each")
    chosen = options.parse_args()
    lengths = [int(n) for n in chosen.messages.split(",")]
    with tempfile.TemporaryDirectory(prefix="om-bench-") as name, model() as upstream:
        folder = Path(name)
        if chosen.whole:
            compare_whole(folder, upstream, lengths, chosen.turns)
            return
        asyncio.run(seed(f"{folder}/om.db", lengths, chosen.threads))
        with proxy(folder, upstream) as (port, _):
            overheads(port, lengths[0], 0, 2)  # the first request of all loads the token ranks
            found = {
                n: [overheads(port, n, t, chosen.turns) for t in range(chosen.threads)]
                for n in lengths
            }
    typical = {}
    for length, threads in found.items():
        cold = statistics.median(times[0] for times in threads[1:] or threads)
        warm = statistics.median(time for times in threads for time in times[1:])
        typical[length] = warm
        print(f"{length:>8} messages   cold {cold:6.2f} ms   warm p50 {warm:6.2f} ms")
    ratio = max(typical.values()) / typical[lengths[0]]
    print(
        f"the slowest takes {ratio:.2f} times as long as {lengths[0]} messages; promised are {PROMISED} at most"
    )
    sys.exit(ratio > PROMISED)


if __name__ == "__main__":
    main()
