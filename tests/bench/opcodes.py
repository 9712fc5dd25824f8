"""Counts the bytecode instructions that our own code runs for a request, in process.

Unlike time they are the same on a busy machine, and unlike instructions of the processor
(`scripts/bench instructions`) they are counted in seconds. They leave out what libraries in C do:
parsing, hashing, SQLite. `request_cost.json` beside this file has what each state came to when it was
last looked at, and what an idle server takes (tests/bench/idle.py); tests/test_bench_opcodes.py
counts again. `python -m tests.bench.opcodes --write` writes the file.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from types import CodeType, FrameType
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

import om_proxy
from om_proxy.app.app import App
from om_proxy.settings.config import parse
from om_proxy.testing import loopback
from om_proxy.testing.chat_form import Turn
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ACTOR, FORMS, ScriptedServer
from tests.support.three_apis import APIS, PATHS, Api, write_body

COST_FILE = Path(__file__).with_name("request_cost.json")
OWN_CODE = str(Path(om_proxy.__file__).parent)
# of the scripted model server; its watchdog looks at its connections each tenth of a second
MODEL_SERVER_CODE = tuple(
    f"{OWN_CODE}/{path}"
    for path in ("testing", "wire/server/protocol.py", "wire/server/watchdog.py")
)
WARM_REQUESTS, COUNTED_REQUESTS = 6, 15
EVENTS = 40, 240  # of the shorter and of the longer stream
SETTLE_S = 0.05  # for what a turn does after its reply
REMARK = "van 7 may use the dock at Quarry Steps before eight, since it is 2.8 m high. " * 3
CONFIG = """
upstream: [{{name: scripted, base_url: "{base}/v1", layout: blocks}}]
storage: {{url: "sqlite:///{folder}/om.db"}}
memory:
  model: openai/scripted-observer
  api_base: "{base}/v1"
  api_key: sk-observer
  economy: "off"
  observation: {{message_tokens: {message_tokens}, buffer_tokens: false}}
telemetry: {{log: json}}
"""
NEVER_TOKENS, SOON_TOKENS = 1_000_000, 600
WORD = re.compile(rb'delta.*"word')


class OpcodeCounter:
    """Counts while it is told to: each opcode of a frame of our own code that began meanwhile."""

    def __init__(self) -> None:
        self.count = 0
        self._is_counting = False
        self._is_own: dict[CodeType, bool] = {}

    def start(self) -> None:
        """Count from now on. Call `install` before any thread is made."""
        self.count, self._is_counting = 0, True

    def stop(self) -> int:
        self._is_counting = False
        return self.count

    def install(self) -> None:
        threading.settrace(self._begin)
        sys.settrace(self._begin)

    def uninstall(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]  # None is what takes it back

    def _begin(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        is_own = self._is_own.get(code)
        if is_own is None:
            name = code.co_filename
            is_own = name.startswith(OWN_CODE) and not name.startswith(MODEL_SERVER_CODE)
            self._is_own[code] = is_own
        if not (is_own and self._is_counting):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, _: FrameType, event: str, __: Any) -> Callable[..., Any]:
        if event == "opcode":
            self.count += 1
        return self._step


class LockstepModels(ScriptedServer):
    """The scripted models. A stream goes on when its last event has reached the client, so that each
    read has one event."""

    def __init__(self) -> None:
        super().__init__()
        self.events = 0
        self.arrived = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.events:
            await super().__call__(scope, receive, send)
            return
        await loopback.read_body(receive)
        head, event, end = STREAMS[scope["path"]]
        await loopback.start_response(send, 200, b"text/event-stream")
        for begun in head:
            await loopback.send_piece(send, begun)
        for _ in range(self.events):
            self.arrived.clear()
            await loopback.send_piece(send, event)
            await self.arrived.wait()
        await loopback.end_response(send, b"".join(end))


def _list_events(api: Api) -> tuple[list[bytes], bytes, list[bytes]]:
    """Return the events of a stream that says one word: those before it, the word and the rest."""
    answer = {"role": "assistant", "content": "word"}
    turn = Turn({}, ACTOR, 1, 1_760_000_000, answer, 100, 0, 20)
    events, end = FORMS[PATHS[api].removeprefix("/v1")].build_stream(turn)
    (place,) = [n for n, event in enumerate(events) if WORD.search(event)]
    return events[:place], events[place], [*events[place + 1 :], *end]


STREAMS = {PATHS[api]: _list_events(api) for api in APIS}


class Client:
    """A client that calls the app in process, and counts what each of its requests costs."""

    def __init__(
        self, app: App, state: dict[str, Any], models: LockstepModels, counter: OpcodeCounter
    ) -> None:
        self._app, self._state, self._counter = app, state, counter
        self.models = models
        self.history: list[dict[str, str]] = [{"role": "system", "content": "Be brief. " * 20}]

    async def send(
        self, thread: str | None, *, stream: bool = False, api: Api = "chat"
    ) -> tuple[int, str, str]:
        """Return the opcodes of a request with this history, its status of memory and its reply."""
        body = orjson.dumps(write_body(api, self.history, model=ACTOR, stream=stream))
        headers = {"host": "127.0.0.1:8400", "authorization": "Bearer sk-a", "accept": "*/*"}
        headers |= {"content-type": "application/json", "content-length": str(len(body))}
        if thread is not None:
            headers["x-om-thread"] = thread
        sent: list[Message] = []
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return left.pop() if left else await asyncio.Future()

        async def send(message: Message) -> None:
            sent.append(message)
            self.models.arrived.set()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": PATHS[api],
            "raw_path": PATHS[api].encode(),
            "query_string": b"",
            "scheme": "http",
            "server": ("127.0.0.1", 8400),
            "client": ("127.0.0.1", 50_000),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "state": dict(self._state),
        }
        self._counter.start()
        await self._app(scope, receive, send)
        await asyncio.sleep(SETTLE_S)
        count = self._counter.stop()
        if sent[0]["status"] != 200:
            raise RuntimeError(f"a request was answered {sent}")
        status = dict(sent[0]["headers"]).get(b"x-om-status", b"").decode()
        reply = b"".join(message.get("body", b"") for message in sent)
        text = "" if stream else orjson.loads(reply)["choices"][0]["message"]["content"]
        return count, status, text

    async def take_turn(self, thread: str, number: int) -> tuple[int, str]:
        """Perform one turn, and return its opcodes and its status."""
        self.history.append({"role": "user", "content": f"Remark {number}: {REMARK}"})
        count, status, text = await self.send(thread)
        self.history.append({"role": "assistant", "content": text})
        return count, status


async def count_states(counter: OpcodeCounter) -> dict[str, int]:
    """Return the opcodes of a request in each state; of an event for streams."""
    costs: dict[str, int] = {}
    async with run_client(counter, NEVER_TOKENS) as (client, _):
        await client.send(None)
        costs["no thread"] = await _count_again(client, None)
        turns = [await client.take_turn("t", n) for n in range(WARM_REQUESTS + COUNTED_REQUESTS)]
        costs["real turn"] = _find_typical([count for count, _ in turns])
        client.history.pop()
        costs["retry, raw"] = await _count_again(client, "t")
    async with run_client(counter, SOON_TOKENS) as (client, app):
        status = ""
        for number in range(40):
            _, status = await client.take_turn("t", number)
            await app.background.wait_idle()
        if status != "applied":
            raise RuntimeError(f"no notes were made: the last turn was {status}")
        client.history.pop()
        costs["retry, applied"] = await _count_again(client, "t")
    for api in APIS:
        async with run_client(counter, NEVER_TOKENS) as (client, _):
            client.history.append({"role": "user", "content": REMARK})
            shorter, longer = [await _take_stream(client, api, events) for events in EVENTS]
            name = "streamed event" if api == "chat" else f"streamed event, {api}"
            costs[name] = round((longer - shorter) / (EVENTS[1] - EVENTS[0]))
    return costs


async def _count_again(client: Client, thread: str | None) -> int:
    requests = range(WARM_REQUESTS + COUNTED_REQUESTS)
    return _find_typical([(await client.send(thread))[0] for _ in requests])


def _find_typical(counts: list[int]) -> int:
    """Return the lower quartile: what the app does each second falls into some requests."""
    return round(quantiles(counts[WARM_REQUESTS:], n=4)[0])


async def _take_stream(client: Client, api: Api, events: int) -> float:
    client.models.events = events
    counts = [(await client.send("s", stream=True, api=api))[0] for _ in range(5)]
    client.models.events = 0
    return median(counts)


@asynccontextmanager
async def run_client(
    counter: OpcodeCounter, message_tokens: int
) -> AsyncIterator[tuple[Client, App]]:
    """Run the app in this process, on a store of its own, until the block ends."""
    models, told = LockstepModels(), asyncio.Queue[Message]()
    answers: asyncio.Queue[Message] = asyncio.Queue()
    with tempfile.TemporaryDirectory() as folder:
        async with serve_on_loopback(models, lifespan="off") as base:
            config = CONFIG.format(base=base, folder=folder, message_tokens=message_tokens)
            app = App(parse(config))
            state: dict[str, Any] = {}
            scope = {"type": "lifespan", "state": state}
            life = asyncio.create_task(app(scope, told.get, answers.put))
            await told.put({"type": "lifespan.startup"})
            started = await answers.get()
            if started["type"] != "lifespan.startup.complete":
                raise RuntimeError(f"the app did not start: {started}")
            try:
                yield Client(app, state, models, counter), app
            finally:
                await told.put({"type": "lifespan.shutdown"})
                await life


def count_idle() -> dict[str, int]:
    """Return what an idle server takes, in a process that has not loaded these programs."""
    command = [sys.executable, "-X", "tracemalloc", "-m", "tests.bench.idle"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, int] = json.loads(run.stdout)
    return found


def count_costs() -> dict[str, int]:
    """Return what `request_cost.json` holds, counted anew."""
    counter = OpcodeCounter()
    counter.install()
    try:
        costs = asyncio.run(count_states(counter))
    finally:
        counter.uninstall()
    return costs | count_idle()


if __name__ == "__main__":
    found = count_costs()
    print(json.dumps(found, indent=4))
    if sys.argv[1:] == ["--write"]:
        COST_FILE.write_text(json.dumps(found, indent=4) + "\n")
