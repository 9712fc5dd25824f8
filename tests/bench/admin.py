"""Measures the admin API against docs/contributing/speed.md: a thread, its notes and its next
prompt, a list of a million threads, and what all of this adds to the start and the size of an idle
server.

Seeds a store with one full thread and rows for many small ones, and starts `om-proxy serve` on it.
Beside the time of a request stands what it costs the server's process: CPU does not grow while
other programs use the machine.
With `--before CHECKOUT` the start and the size are also those of an older checkout, in turns.
Everything binds 127.0.0.1 and ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.agents.models.price_list import _read_table
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import Key, Memory, Message, Observation, extend_chain
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.keyed_hashes import fingerprint_key
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.wire.apis.registry import read_item
from tests.bench.long_thread import (
    ServedProxy,
    find_free_port,
    headers,
    model,
    proxy,
    wait_ready,
)

THREAD = "full"
SENTENCE = (
    "The dock at Quarry Steps takes no van higher than 2.85 m, and nobody may move crate {}. "
)
# the most that a thread holds with the default thresholds: 40 000 tokens of notes, 30 000 raw
LOG_ENTRIES, TOKENS_PER_ENTRY = 25, 1_500
CHUNKS, TAIL_MESSAGES, TOKENS_PER_MESSAGE = 3, 140, 200
LISTED = 100  # threads of a page: the default of `limit`
METRICS_MODELS = 200  # that `/metrics` tells apart: as many as it may name
MAX_METRICS_BYTES = 150_000
MILLION = 1_000_000


class Goal(NamedTuple):
    """A request, and the milliseconds that its median may take."""

    name: str
    path: str
    accepted_ms: float
    body: str | None = None
    max_bytes: int | None = None


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


async def seed(path: Path, threads: int) -> None:
    """Store one full thread, then rows of as many small ones."""
    store = await SqliteStore.open(path)
    try:
        secret = await store.secret()
        sent = [(name.encode(), value.encode()) for name, value in headers(THREAD).items()]
        key = identify(sent, IdentityRules(), secret).key
        assert key is not None
        await fill_thread(store, key, fingerprint_key(secret, key.tenant))
    finally:
        await store.close()
    copy_thread(path, key, threads)


async def fill_thread(store: SqliteStore, key: Key, fingerprints: bytes) -> None:
    memory = await store.load(key)
    for number in range(LOG_ENTRIES + CHUNKS):
        memory = await store.commit(memory, hear(memory, fingerprints, 8))
        memory = await store.commit(memory, transitions.add_chunk(memory, note(memory)))
        if number < LOG_ENTRIES:
            active = transitions.activate_chunks(memory, [memory.chunks[0].id], time.time())
            memory = await store.commit(memory, active)
    await store.commit(memory, replace(hear(memory, fingerprints, TAIL_MESSAGES), turns=170))


def hear(memory: Memory, fingerprints: bytes, count: int) -> Memory:
    """Return the memory with as many messages more."""
    fresh, seq, chain = [], memory.next_seq, memory.chain
    for number in range(seq, seq + count):
        role = "user" if number % 2 else "assistant"
        message = {"role": role, "content": SENTENCE.format(number) * 8}
        item = read_item(json.dumps(message).encode(), fingerprints, "chat")
        chain = extend_chain(chain, item.fp)
        fresh.append(Message(number, item, chain, TOKENS_PER_MESSAGE, time.time()))
    tail = (*memory.tail, *fresh)
    return replace(memory, tail=tail, next_seq=seq + count, turn_at=time.time(), model="gpt-4o")


def note(memory: Memory) -> Observation:
    """Return an observation of all that none covers yet."""
    last = memory.tail[-1]
    after = memory.chunks[-1].last if memory.chunks else memory.coverage
    lines = "".join(f"* 🔴 (10:0{n % 10}) {SENTENCE.format(n)}\n" for n in range(45))
    return Observation(
        id=0,
        after=after,
        last=last.seq,
        chain=last.chain,
        text=f"Date: May 22, 2026\n{lines}",
        tokens=TOKENS_PER_ENTRY,
        source_tokens=8 * TOKENS_PER_MESSAGE,
        at=time.time(),
    )


def copy_thread(path: Path, key: Key, threads: int) -> None:
    """Write rows of small threads, as lists read them, each with a time of its own."""
    with closing(sqlite3.connect(path)) as db, db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(thread)")]
        own = {
            "id": "1000000000 + n",
            "version": "1000000000 + n",
            "resource": "'resource-' || (n % 1000)",
            "thread": "'thread-' || n",
            "turn_at": "1.7e9 + n",
            "due": "NULL",
        }
        values = ", ".join(own.get(column, column) for column in columns)
        names = ", ".join(columns)  # of the table itself; `values` are expressions of this function
        db.execute(
            f"""WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
            INSERT INTO thread ({names}) SELECT {values} FROM numbers, thread WHERE thread.thread = ?""",  # noqa: S608 # see above
            (threads, key.thread),
        )


# ── routes ────────────────────────────────────────────────────────────────────────────────────────


def list_goals(last_cursor: str) -> list[Goal]:
    thread = f"/om/v1/threads/{THREAD}"
    named = "resource=bench"
    messages = [{"role": "user", "content": "Where is crate 7?"}]
    request = json.dumps({"model": "gpt-4o", "messages": messages})
    recent = f"/om/v1/threads?order=recent&limit={LISTED}"
    return [
        Goal("GET /threads/{thread}", f"{thread}?{named}", 3),
        Goal("GET …/observations", f"{thread}/observations?{named}", 3),
        Goal("GET …/context?text=", f"{thread}/context?{named}&text=Where%20is%20crate%207?", 8),
        Goal("POST …/context", f"{thread}/context?{named}", 8, request),
        Goal("GET /threads?order=recent", recent, 10),
        Goal("GET /threads?order=recent, its 50th page", f"{recent}&cursor={last_cursor}", 10),
        Goal("GET /threads?q=thread-77", "/om/v1/threads?q=thread-77&order=recent", 10),
        Goal("GET /threads?state=failing", "/om/v1/threads?state=failing", 10),
        Goal("GET /metrics, 200 models", "/metrics", 15, max_bytes=MAX_METRICS_BYTES),
    ]


def ask(connection: HTTPConnection, goal: Goal) -> bytes:
    # `/metrics` takes no credential of a client
    sent = {} if goal.path == "/metrics" else headers(THREAD)
    connection.request("POST" if goal.body else "GET", goal.path, goal.body, sent)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, (goal.path, answer.status, body[:300])
    return body


def use_models(connection: HTTPConnection) -> None:
    """Send a chat request to each of so many models of the price table."""
    names = [name for name in _read_table() if "/" not in name][:METRICS_MODELS]
    assert len(names) == METRICS_MODELS
    for name in names:
        body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello."}]})
        connection.request("POST", "/v1/chat/completions", body, headers(f"of-{name}"))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, (name, answer.status)


def read_cpu_ms(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e6


def find_cursor(connection: HTTPConnection, pages: int) -> str:
    cursor = ""
    for _ in range(pages):
        path = f"/om/v1/threads?order=recent&limit={LISTED}&cursor={cursor}"
        found = json.loads(ask(connection, Goal("", path, 0)))
        cursor = found["cursor"].replace("\t", "%09")
    return cursor


def measure_routes(server: ServedProxy, requests: int) -> Iterator[str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    use_models(connection)
    for goal in list_goals(find_cursor(connection, 50)):
        ask(connection, goal)  # the first one fills caches
        times_ms, size = [], 0
        cpu_ms = read_cpu_ms(server.pid)
        for _ in range(requests):
            started = time.perf_counter()
            size = len(ask(connection, goal))
            times_ms.append(1_000 * (time.perf_counter() - started))
        cpu_ms = (read_cpu_ms(server.pid) - cpu_ms) / requests
        p50, p95 = statistics.median(times_ms), statistics.quantiles(times_ms, n=20)[-1]
        is_kept = p50 <= goal.accepted_ms and size <= (goal.max_bytes or size)
        yield (
            f"{goal.name:42} p50 {p50:7.2f} ms  p95 {p95:7.2f} ms  CPU {cpu_ms:6.2f} ms"
            f"  accepted {goal.accepted_ms:2} ms  {'reached' if is_kept else 'NOT REACHED'}"
            f"  ({size:,} bytes)"
        )


# ── start and size ────────────────────────────────────────────────────────────────────────────────


class Idle(NamedTuple):
    """A server before its first request: how long it took to start, and its size."""

    start_ms: float
    resident_mb: float


def measure_idle(package: Path, folder: Path) -> Idle:
    """Start the server of this package on a store of its own, and end it."""
    port = find_free_port()
    config = {
        "server": {"port": port},
        "upstream": [{"base_url": "http://127.0.0.1:9/v1"}],
        "storage": {"url": f"sqlite:///{folder}/idle.db"},
        "telemetry": {"log": "off"},
    }
    (folder / "idle.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "om_proxy", "serve", "--config", str(folder / "idle.yaml")]
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(package)}, stdout=subprocess.DEVNULL
    )
    try:
        wait_ready(port)
        start_ms = 1_000 * (time.perf_counter() - started)
        time.sleep(3)  # token ranks are loaded after the start
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return Idle(start_ms, int(resident.split()[1]) / 1_024)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def compare_idle(checkouts: dict[str, Path], folder: Path, rounds: int) -> Iterator[str]:
    found: dict[str, list[Idle]] = {name: [] for name in checkouts}
    for number in range(rounds + 1):
        for name, checkout in checkouts.items():
            (folder / f"{name}-{number}").mkdir()
            idle = measure_idle(checkout / "proxy", folder / f"{name}-{number}")
            if number:  # the first one writes the compiled files
                found[name].append(idle)
    for name, idles in found.items():
        start = min(idle.start_ms for idle in idles)
        resident = statistics.median(idle.resident_mb for idle in idles)
        yield f"{name:42} start {start:7.0f} ms (the fastest)  {resident:6.1f} MB resident"


def main() -> None:
    options = argparse.ArgumentParser(prog="scripts/bench-admin", description=__doc__)
    options.add_argument("--threads", type=int, default=MILLION)
    options.add_argument("--requests", type=int, default=200, help="to each route")
    options.add_argument("--before", type=Path, help="an older checkout")
    options.add_argument("--rounds", type=int, default=5, help="starts of each checkout; 0: none")
    chosen = options.parse_args()
    checkouts = {"this checkout": Path(__file__).parents[2]}
    if chosen.before:
        checkouts["before"] = chosen.before.resolve()
    with tempfile.TemporaryDirectory(prefix="om-bench-") as name, model() as upstream:
        folder = Path(name)
        asyncio.run(seed(folder / "om.db", chosen.threads))
        with proxy(folder, upstream) as server:
            for line in measure_routes(server, chosen.requests):
                print(line, flush=True)
        for line in compare_idle(checkouts, folder, chosen.rounds) if chosen.rounds else ():
            print(line, flush=True)


if __name__ == "__main__":
    main()
