"""Plays a recording through the real proxy at the recording's own clock, and looks at memory after
each call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from om_proxy.agents.models import create_encoder
from om_proxy.app.app import App
from om_proxy.memory.model import Memory, Observation
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from tests.bench.notes.hint_age import HINTS, Shown, Written, age_hints, hints_in
from tests.bench.notes.recorded import Recording
from tests.bench.notes.server import NotesServer
from tests.bench.replaying import HEADERS, Model, Timed, counted
from tests.e2e.running import Clock

LONGEST_CALL_S = 24 * 3600.0  # of a memory model: a person may be the one who answers


@dataclass(slots=True)
class Played:
    """`notes`: every observation that memory ever held, by thread; `memories`: what each thread's
    memory holds at the end."""

    notes: dict[str, dict[int, Observation]] = field(default_factory=dict)
    hints: list[Shown] = field(default_factory=list)
    memories: dict[str, Memory] = field(default_factory=dict)
    requests: int = 0
    applied: int = 0


class Stopped(Exception):
    """The run cannot go on; its text says why."""


async def play(
    recording: Recording,
    server: NotesServer,
    settings: Mapping[str, Any],
    tell: Callable[[str], object] = print,
) -> Played:
    """Every call in order. Work behind a reply is done before the next call, however long the
    memory model takes."""
    played, clock = Played(), Clock()
    recorded = Model(recording.calls, clock)
    with tempfile.TemporaryDirectory(prefix="om-notes-") as folder:
        async with (
            serve_on_loopback(recorded, lifespan="off") as upstream,
            serve_on_loopback(server, lifespan="off") as notes,
        ):
            configuration = configure(settings, upstream=upstream, notes=notes, folder=folder)
            app = App(parse(orjson.dumps(configuration).decode()), clock=clock)
            async with (
                serve_on_loopback(app) as base,
                httpx.AsyncClient(base_url=base, trust_env=False, timeout=LONGEST_CALL_S) as client,
            ):
                for number, call in enumerate(recording.calls):
                    clock.now = call.asked_at
                    await _play_call(client, number, call, recorded, played, app)
                    if server.failure:
                        raise Stopped(str(server.failure)) from server.failure
                    if (number + 1) % 50 == 0:
                        tell(
                            f"{number + 1} of {len(recording.calls)} calls, {len(server.calls)} memory calls"
                        )
    return played


def configure(
    settings: Mapping[str, Any], *, upstream: str, notes: str, folder: str
) -> dict[str, Any]:
    """The proxy's configuration; `settings` is laid over it, section by section."""
    own: dict[str, Any] = {
        "upstream": [
            {"name": "recorded", "match": ["*"], "base_url": f"{upstream}/v1", "layout": "blocks"}
        ],
        "storage": {"url": f"sqlite:///{folder}/om.db"},
        "memory": {
            "model": "openai/notes",
            "api_base": f"{notes}/v1",
            "api_key": "sk-notes",
            "observation": {"block_timeout": f"{LONGEST_CALL_S:.0f}s"},
        },
        "background": {"call_timeout": f"{LONGEST_CALL_S:.0f}s"},
        "telemetry": {"log": "off"},
    }
    return merge(own, settings)


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings key by key; what is none replaces what was there."""
    merged = dict(under)
    for key, value in over.items():
        known = merged.get(key)
        merged[key] = (
            merge(known, value)
            if isinstance(known, Mapping) and isinstance(value, Mapping)
            else value
        )
    return merged


async def _play_call(
    client: httpx.AsyncClient, number: int, call: Timed, recorded: Model, played: Played, app: App
) -> None:
    body = orjson.dumps({"model": "gpt-4o", "messages": call.sent})
    headers = HEADERS | {"x-om-thread": call.thread, "x-test-call": str(number)}
    answer = await client.post("/v1/chat/completions", content=body, headers=headers)
    if answer.status_code != 200:
        raise Stopped(f"call {number} was answered {answer.status_code}: {answer.text[:300]}")
    (forwarded,) = recorded.bodies.pop(number)
    played.requests += 1
    played.applied += answer.headers.get("x-om-status") == "applied"
    memory = await _look(
        app, call.thread, played
    )  # before the work behind the reply: as the prompt was made
    played.hints += _aged(number, call, orjson.loads(forwarded)["messages"], memory, played)
    await app.background.wait_idle()
    await _look(app, call.thread, played)


async def _look(app: App, thread: str, played: Played) -> Memory:
    (key,) = [info.key for info in await app.store.threads(None) if info.key.thread == thread]
    memory = await app.store.load(key)
    if memory.end != memory.count:
        raise Stopped(
            f"thread {thread} has {memory.count} messages up to number {memory.end}: the proxy took it for two histories"
        )
    played.notes.setdefault(thread, {}).update(
        {o.id: o for o in (*memory.log.entries, *memory.chunks)}
    )
    played.memories[thread] = memory
    return memory


def _aged(
    number: int, call: Timed, prompt: Sequence[Mapping[str, Any]], memory: Memory, played: Played
) -> list[Shown]:
    if not (shown := hints_in(prompt)):
        return []
    written = [
        Written(name, text, note.last)
        for note in played.notes[call.thread].values()
        for name, text in zip(HINTS, (note.task, note.suggestion), strict=True)
        if text
    ]
    sent = [
        (m["role"], counted(m)[1]) for m in call.sent if m["role"] not in ("system", "developer")
    ]
    return age_hints(number, shown, written, memory.coverage, sent)


count_tokens: Callable[[str], int] = create_encoder(
    ""
)  # o200k, as the proxy counts for a model it does not know
