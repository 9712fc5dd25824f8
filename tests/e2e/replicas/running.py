"""Run replicas on one PostgreSQL, kill them while clients talk, and judge what was seen."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from om_proxy.testing.asgi import Receive, Scope, Send
from om_proxy.testing.faults import Fault
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.notes import extract_transcript
from om_proxy.testing.scripted import ACTOR, OBSERVER, REFLECTOR, RecordedRequest, message_text
from tests.e2e.crash.models import NOTED, SAID, Models
from tests.e2e.replicas.clients import (
    REQUEST_TIMEOUT_S,
    SHARER,
    SHORT_TIMEOUT_S,
    ClientKind,
    Notebook,
    ReplicaClient,
)
from tests.e2e.replicas.history import MAX_STRANDED_S, Findings, History, Prompt, Turn, check
from tests.e2e.replicas.late_turns import ServedBy, judge_late
from tests.e2e.replicas.plan import Plan
from tests.e2e.replicas.replica_set import Replicas, start_replicas
from tests.e2e.replicas.stored import read_store
from tests.support.own_postgres import OwnPostgres

# of the clients, in turn
KINDS: tuple[ClientKind, ...] = ("full", "thin", "full", "paired", "paired", "sharing", "sharing")
MODEL_DELAY_S = 0.1
# of a prompt about several threads
SECTION = re.compile(r'^<thread id="([0-9a-f]{16})">\n(.*?)\n</thread>$', re.DOTALL | re.MULTILINE)
STRANDED_MARGIN_S = 20.0


@dataclass(frozen=True)
class Report:
    """What came of it."""

    replicas: Replicas
    schema_version: int  # of the database, at the end
    notebook: Notebook
    history: History
    findings: Findings
    observed: Sequence[int]  # how often each message was shown to an observer

    @property
    def observed_twice(self) -> int:
        """The messages that were paid for again."""
        return sum(count - 1 for count in self.observed)

    def dump(self) -> bytes:
        """Return what was seen as JSON, for a file that outlives a failed run."""
        seen = {
            name: [value._asdict() for value in values]
            for name, values in vars(self.history).items()
            if name not in ("began_at", "at", "max_stranded_s")
        }
        return orjson.dumps(seen, default=_write_plainly)

    def __str__(self) -> str:
        notebook, findings = self.notebook, self.findings
        unknown = notebook.count("unknown")
        lines = {
            "kills": self.replicas.kills,
            "stops": self.replicas.stops,
            "replaced": self.replicas.replaced,
            **self.replicas.trouble.counts,
            "longest healing": f"{self.replicas.trouble.longest_healing_s:.1f} s",
            "schema": self.schema_version,
            "acknowledged turns": notebook.count("acknowledged"),
            "unknown turns": f"{unknown}, of them degraded {notebook.degraded_count}",
            "turns that waited": sum(turn.has_waited for turn in self.history.turns),
            "late turns": sum(
                turn.outcome == "unknown" and bool(turn.reply) and turn.has_memory
                for turn in self.history.turns
            ),
            "readings": len(notebook.readings),
            "forgotten threads": len(notebook.forgettings),
            "observed messages": f"{len(self.observed)}, paid for again {self.observed_twice}",
            **{name: len(found) for name, found in vars(findings).items()},
        }
        told = [f"{name:<20}{value}" for name, value in lines.items()]
        return "\n".join([*told, *([str(findings)] if findings else []), *notebook.errors[:5]])


class MarkedModels(Models):
    """The model servers. It remembers of each request only what the checker needs."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[Prompt] = []
        self.observed: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer after a while, so that a kill finds requests under way."""
        await asyncio.sleep(MODEL_DELAY_S)
        await super().__call__(scope, receive, send)

    def choose_answer(
        self, model: str, messages: Sequence[Mapping[str, Any]], fault: Fault | None
    ) -> Mapping[str, Any]:
        """Answer a memory call about several threads with a section for each."""
        sections = SECTION.findall(message_text(messages[-1]))
        if model not in (OBSERVER, REFLECTOR) or not sections:
            return super().choose_answer(model, messages, fault)
        answers = [
            super(MarkedModels, self).choose_answer(model, [{"content": text}], fault)["content"]
            for _, text in sections
        ]
        content = "\n".join(
            f'<thread id="{label}">\n{answer}\n</thread>'
            for (label, _), answer in zip(sections, answers, strict=True)
        )
        return {"role": "assistant", "content": content}

    def note_requests(self) -> None:
        """Read what was asked since, and forget the bodies."""
        requests, self.requests[:] = list(self.requests), []
        for request in requests:
            if request.model in (ACTOR, SHARER):
                self.prompts.append(self._read_prompt(request))
            elif request.model == OBSERVER:
                text = message_text(request.messages[-1])
                for section in [section for _, section in SECTION.findall(text)] or [text]:
                    self.observed.update(set(SAID.findall(extract_transcript(section))))

    def _read_prompt(self, request: RecordedRequest) -> Prompt:
        texts = [message_text(message) for message in request.messages]
        marks = tuple(found.group() for text in texts if (found := SAID.match(text)))
        noted = {said for name in NOTED.findall(" ".join(texts)) for said in self.shown[name]}
        reply = SAID.findall(str(request.answer["content"]))[0]
        return Prompt(marks[-1], marks, frozenset(noted), reply)


async def run_replicas(
    url: str, folder: Path, plan: Plan, server: OwnPostgres | None = None
) -> Report:
    """Do what is planned in a schema of its own, and judge it. `server`: the run's own, which it may
    end."""
    schema = f"om_replicas_{secrets.token_hex(6)}"
    models, notebook = MarkedModels(), Notebook()
    began_at = time.time()
    try:
        async with serve_on_loopback(models, lifespan="off") as models_url:
            async with start_replicas(folder, url, schema, models_url, plan, server) as replicas:
                await _talk_in_trouble(replicas, models, notebook, plan)
            models.note_requests()
            stored = await read_store(url, schema)
    finally:
        connection = await asyncpg.connect(url)
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        await connection.close()
    history = History(
        [
            _judge_late(turn, notebook, replicas)
            for turn in notebook.turns
            if turn.thread not in notebook.unknown_threads
        ],
        models.prompts,
        [one for one in stored.threads if one.thread not in notebook.unknown_threads],
        notebook.readings,
        notebook.forgettings,
        stored.leases,
        replicas.trouble.outages,
        began_at,
        stored.at,
        _find_max_stranded(plan),
    )
    return Report(
        replicas,
        stored.schema_version,
        notebook,
        history,
        check(history),
        _count_observed(notebook, models),
    )


def _judge_late(turn: Turn, notebook: Notebook, replicas: Replicas) -> Turn:
    port = notebook.served_by.get(turn.said, 0)
    process = ServedBy(
        [(since, to) for stopped_port, since, to in replicas.stopped if stopped_port == port],
        [at for killed_port, at in replicas.killed_at if killed_port == port],
    )
    is_said_once = turn.said in notebook.said_once
    return judge_late(turn, process, replicas.trouble.outages, is_said_once=is_said_once)


def _find_max_stranded(plan: Plan) -> float:
    """Return how long work may be due before somebody holds its lease. Where leases are short, an
    outage and a busy machine count for more."""
    return 1.3 * plan.lease_s + STRANDED_MARGIN_S if plan.lease_s else MAX_STRANDED_S


def _count_observed(notebook: Notebook, models: MarkedModels) -> list[int]:
    """Return how often each message was shown to an observer. A fork takes notes back that also
    cover what stays: the messages of such threads are not counted."""
    forked = {turn.thread for turn in notebook.turns if turn.takes_back}
    said = {turn.said for turn in notebook.turns if turn.thread not in forked}
    return [models.observed[mark] for mark in said if mark in models.observed]


async def _talk_in_trouble(
    replicas: Replicas, models: MarkedModels, notebook: Notebook, plan: Plan
) -> None:
    ended = asyncio.Event()
    timeout_s = (
        SHORT_TIMEOUT_S if plan.stop_every_s and not plan.outage_every_s else REQUEST_TIMEOUT_S
    )
    clients = [
        ReplicaClient(
            number,
            KINDS[number % len(KINDS)],
            replicas.front,
            notebook,
            plan.seed,
            timeout_s,
            plan.leaving_share,
        )
        for number in range(plan.clients)
    ]

    async def end_in_time() -> None:
        until = time.monotonic() + plan.seconds
        while (
            time.monotonic() < until
            or replicas.kills < plan.kills
            or replicas.replaced < plan.rolls * plan.replicas
            or notebook.count("acknowledged") < plan.turns
        ):
            await asyncio.sleep(0.2)
            models.note_requests()
        ended.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(end_in_time())
        if plan.kills:
            tasks.create_task(replicas.kill_until(ended))
        if plan.rolls:
            tasks.create_task(replicas.roll())
        if plan.stop_every_s:
            tasks.create_task(replicas.stop_until(ended))
        if plan.outage_every_s:
            tasks.create_task(replicas.trouble.cause_until(ended, plan.outage_every_s))
        for client in clients:
            tasks.create_task(client.talk_until(ended))


def _write_plainly(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    assert isinstance(value, frozenset | tuple)
    return sorted(value) if isinstance(value, frozenset) else list(value)
