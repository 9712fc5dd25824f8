"""Real turns by each of the three APIs, side by side: `grow:16` of one server, in turns.

Each connection plays threads of 20 turns, one exchange more each time. A client sends a reply again
as its SDK does, in the words of its API. The model server answers at once, whatever it is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

import orjson
import uvloop

from om_proxy.testing.chat_form import Turn
from om_proxy.testing.scripted import FORMS
from tests.bench.loads import MOST_TURNS_PER_S, SAID, SYSTEM, TURNS_OF_A_THREAD, Load, write_request
from tests.bench.run import Bench, measure_load
from tests.bench.servers import (
    LOAD_CORE,
    START_TIMEOUT_S,
    UPSTREAM_PORT,
    Running,
    count_answers,
    describe_target,
    serve_target,
)
from tests.support.three_apis import APIS, PATHS, Api, write_body

CONNECTIONS = 16
ANSWER = {
    "role": "assistant",
    "content": "Hello! This is a static reply of the model server that overhead is measured with.",
}
MESSAGES_HEADERS = ("anthropic-version: 2023-06-01", "x-api-key: sk-bench")

Json = dict[str, Any]


def build_reply(api: Api) -> Json:
    turn = Turn({}, "gpt-4o", 1, 1_760_000_000, ANSWER, 100, 0, 20)
    return FORMS[PATHS[api].removeprefix("/v1")].build_reply(turn)


def read_sent_reply(api: Api, reply: Json) -> list[Json]:
    """Return the elements with which a client sends this reply again."""
    if api == "chat":
        return [reply["choices"][0]["message"]]
    if api == "responses":
        return list(reply["output"])
    return [{"role": "assistant", "content": reply["content"]}]


def list_bodies(api: Api, thread: int) -> Iterator[bytes]:
    """Yield the bodies of a thread's turns."""
    body = write_body(api, [SYSTEM], model="gpt-4o", stream=False)
    elements: list[Json] = []
    for said in range(TURNS_OF_A_THREAD):
        elements.append({"role": "user", "content": SAID.format(said + 1, thread)})
        system = [SYSTEM] if api == "chat" else []
        name = "input" if api == "responses" else "messages"
        yield json.dumps({**body, name: [*system, *elements]}, separators=(",", ":")).encode()
        elements += read_sent_reply(api, build_reply(api))


def write_turns(api: Api, port: int, seconds: float, headers: Sequence[str]) -> Iterator[bytes]:
    """Yield the requests of all connections, turn by turn, as play.c reads them."""
    threads = int((1.2 * seconds + 1) * MOST_TURNS_PER_S / CONNECTIONS / TURNS_OF_A_THREAD) + 1
    more = MESSAGES_HEADERS if api == "messages" else ()
    for thread in range(threads):
        for body in list_bodies(api, thread):
            for connection in range(CONNECTIONS):
                number = thread * CONNECTIONS + connection
                request = write_request(port, body, [*headers, *more], number, PATHS[api])
                yield b"%d\n%b" % (len(request), request)


class ReplyProtocol(asyncio.Protocol):
    """Answers each request by its path, as soon as it is complete."""

    replies: Mapping[bytes, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._held = b""

    def data_received(self, data: bytes) -> None:
        self._held += data
        while b"\r\n\r\n" in self._held:
            head, _, rest = self._held.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(rest) < length:
                return
            self._held = rest[length:]
            self._transport.write(self.replies[head.split(b" ", 2)[1]])


async def serve_replies() -> None:
    for api, path in PATHS.items():
        body = orjson.dumps(build_reply(api))
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        ReplyProtocol.replies = {
            **ReplyProtocol.replies,
            path.encode(): head.encode() + b"\r\n\r\n" + body,
        }
    loop = asyncio.get_running_loop()
    server = await loop.create_server(ReplyProtocol, "127.0.0.1", UPSTREAM_PORT)
    await server.serve_forever()


def measure_round(
    bench: Bench, running: Running, seconds: float, apis: Sequence[Api]
) -> Iterator[tuple[Api, Json]]:
    """Yield a row of each API, in this order."""
    load = Load(f"grow:{CONNECTIONS}", None, CONNECTIONS, "play")
    requests = bench.folder / "requests"
    for api in apis:
        tag = f"{api}-{time.time_ns()}"
        headers = [one.replace("bench-####", f"{tag}-####") for one in running.target.headers]
        port = running.target.port
        with requests.open("wb") as file:
            file.writelines(write_turns(api, port, seconds, headers))
        program = [bench.folder / "play", port, CONNECTIONS, seconds, 0, 0, requests]
        if row := measure_load(running, load, seconds, list(map(str, program))):
            yield api, row


def write_table(rows: Mapping[Api, Sequence[Json]]) -> Iterator[str]:
    """Yield the medians of each API, and the median of its rounds' ratios to chat's CPU."""
    yield "| API | requests/s | CPU µs a request | × chat |"
    yield "|---|---:|---:|---:|"
    for api, found in rows.items():
        ratios = [
            row["cpu_us"] / chat["cpu_us"] for row, chat in zip(found, rows["chat"], strict=True)
        ]
        rate, cpu = (median(row[name] for row in found) for name in ("rps", "cpu_us"))
        yield f"| `{api}` | {rate:,.0f} | {cpu:,.0f} | {median(ratios):.2f} |"


def main() -> None:
    options = argparse.ArgumentParser(prog="scripts/bench apis", description=__doc__)
    options.add_argument("--bench", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2.0)
    chosen = options.parse_args()
    bench = Bench(chosen.bench, Path(tempfile.mkdtemp(prefix="om-bench-")))
    bench.build()
    target = describe_target("om_raw", bench.folder, bench.shared)
    body = next(list_bodies("chat", 0))
    command = [sys.executable, "-m", "tests.bench.three_apis", "--replies"]
    models = subprocess.Popen(["taskset", "-c", LOAD_CORE, *command])
    rows: dict[Api, list[Json]] = defaultdict(list)
    try:
        count_answers(UPSTREAM_PORT, (), body, START_TIMEOUT_S)
        with serve_target(target, bench.shared, bench.folder, models.pid, body) as running:
            if running is None:
                raise SystemExit(f"scripts/bench: no answer; the log is in {bench.folder}")
            for number in range(chosen.rounds + 1):
                first = number % len(APIS)
                order = [*APIS[first:], *APIS[:first]]
                for api, row in measure_round(bench, running, chosen.seconds, order):
                    if number:  # the first round warms up
                        rows[api].append(row)
    finally:
        models.terminate()
        models.wait()
    print(*write_table({api: rows[api] for api in APIS}), sep="\n")
    wrong = sum(row["non200"] + row["errors"] for found in rows.values() for row in found)
    print(f"not answered 200: {wrong}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--replies"]:
        uvloop.run(serve_replies())
    else:
        main()
