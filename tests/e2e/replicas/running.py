"""Run replicas on one store, kill them while clients talk, and judge what was seen."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from om_proxy.testing.loopback import Receive, Scope, Send, serve_on_loopback
from om_proxy.testing.notes import extract_transcript
from om_proxy.testing.scripted import (
    ACTOR,
    OBSERVER,
    REFLECTOR,
    Fault,
    RecordedRequest,
    message_text,
)
from tests.e2e.crash.models import NOTED, SAID, Models
from tests.e2e.replicas.clients import (
    REQUEST_TIMEOUT_S,
    SHARER,
    SHORT_TIMEOUT_S,
    Notebook,
    ReplicaClient,
)
from tests.e2e.replicas.history import MAX_STRANDED_S, Findings, History, Prompt, Turn, check
from tests.e2e.replicas.late_turns import judge_late
from tests.e2e.replicas.plan import Plan
from tests.e2e.replicas.repeats import ObserverCall, RepeatCause, explain_repeats
from tests.e2e.replicas.replica_set import Replicas, start_replicas
from tests.e2e.replicas.stored import open_run_store
from tests.support.own_postgres import OwnPostgres
from tests.support.own_redis import OwnRedis

MODEL_DELAY_S = 0.1
# names the process that asks a memory model (replica_set.CONFIGURATION)
MEMORY_KEY = re.compile(rb"sk-memory-(\d+)")
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
    observed: int  # messages that were shown to an observer
    observer_calls: Sequence[ObserverCall]
    # how often one of them was shown again, and so paid for again, by why
    repeats: Counter[RepeatCause] = field(default_factory=Counter)

    def dump(self) -> bytes:
        """Return what was seen as JSON, for a file that outlives a failed run."""
        seen = {
            name: [value._asdict() for value in values]
            for name, values in vars(self.history).items()
            if name not in ("deadlocks", "began_at", "at", "max_stranded_s")
        }
        seen["served_by"] = [
            {"said": said, "port": port} for said, port in self.notebook.served_by.items()
        ]
        seen["observer_calls"] = [call._asdict() for call in self.observer_calls]
        seen["processes"] = [
            {"port": port, **asdict(fate)} for port, fate in self.replicas.list_fates().items()
        ]
        return orjson.dumps(seen, default=_write_plainly)

    def __str__(self) -> str:
        notebook, findings = self.notebook, self.findings
        unknown = notebook.count("unknown")
        lines = {
            "kills": f"{self.replicas.kills}, of them with turns that wait "
            f"{len(self.replicas.killed_with_turns_at)}",
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
            "observer calls": len(self.observer_calls),
            "observed messages": self.observed,
            "paid for again": f"{self.repeats.total()}, {self.repeats.total() / max(self.observed, 1):.2%}",
            **{f"- {cause}": count for cause, count in sorted(self.repeats.items())},
            **{name: len(found) for name, found in vars(findings).items()},
        }
        told = [f"{name:<20}{value}" for name, value in lines.items()]
        return "\n".join([*told, *([str(findings)] if findings else []), *notebook.errors[:5]])


class MarkedModels(Models):
    """The model servers. It remembers of each request only what the checker needs."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[Prompt] = []
        self.observer_calls: list[ObserverCall] = []
        # the port of the process that makes the call under way, and when it began
        self._call: ContextVar[tuple[int, float]] = ContextVar("call")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer after a while, so that a kill finds requests under way."""
        if key := MEMORY_KEY.search(dict(scope["headers"]).get(b"authorization", b"")):
            self._call.set((int(key[1]), time.monotonic()))
        await asyncio.sleep(MODEL_DELAY_S)
        await super().__call__(scope, receive, send)

    def choose_answer(
        self, model: str, messages: Sequence[Mapping[str, Any]], fault: Fault | None
    ) -> Mapping[str, Any]:
        """Answer a memory call about several threads with a section for each."""
        sections = SECTION.findall(message_text(messages[-1]))
        if model == OBSERVER:
            self._note_call([text for _, text in sections] or [message_text(messages[-1])])
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

    def _note_call(self, texts: Sequence[str]) -> None:
        marks = frozenset(mark for text in texts for mark in SAID.findall(extract_transcript(text)))
        self.observer_calls.append(ObserverCall(*self._call.get(), time.monotonic(), marks))

    def note_requests(self) -> None:
        """Read what was asked since, and forget the bodies."""
        requests, self.requests[:] = list(self.requests), []
        for request in requests:
            if request.model in (ACTOR, SHARER):
                self.prompts.append(self._read_prompt(request))

    def _read_prompt(self, request: RecordedRequest) -> Prompt:
        texts = [message_text(message) for message in request.messages]
        marks = tuple(found.group() for text in texts if (found := SAID.match(text)))
        noted = {said for name in NOTED.findall(" ".join(texts)) for said in self.shown[name]}
        reply = SAID.findall(str(request.answer["content"]))[0]
        return Prompt(marks[-1], marks, frozenset(noted), reply)


async def run_replicas(
    url: str, folder: Path, plan: Plan, server: OwnPostgres | OwnRedis | None = None
) -> Report:
    """Do what is planned in a store of its own, and judge it. `server`: the run's own, which it
    may end."""
    models, notebook = MarkedModels(), Notebook()
    began_at = time.time()
    async with (
        open_run_store(url) as store,
        serve_on_loopback(models, lifespan="off") as models_url,
    ):
        async with start_replicas(folder, store, models_url, plan, server) as replicas:
            await _talk_in_trouble(replicas, models, notebook, plan)
        models.note_requests()
        stored = await store.read(replicas.policy)
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
        replicas.trouble.restores,
        replicas.trouble.deadlocks + stored.deadlocks,
        began_at,
        stored.at,
        _find_max_stranded(plan),
    )
    observed = _find_observed(notebook, models)
    return Report(
        replicas,
        stored.schema_version,
        notebook,
        history,
        check(history),
        len(observed),
        models.observer_calls,
        explain_repeats(
            models.observer_calls, observed, replicas.list_fates(), replicas.trouble.restores
        ),
    )


def _judge_late(turn: Turn, notebook: Notebook, replicas: Replicas) -> Turn:
    process = replicas.find_fate(notebook.served_by.get(turn.said, 0))
    is_said_once = turn.said in notebook.said_once
    return judge_late(turn, process, replicas.trouble.outages, is_said_once=is_said_once)


def _find_max_stranded(plan: Plan) -> float:
    """Return how long work may be due before somebody holds its lease. Where leases are short, an
    outage and a busy machine count for more."""
    return 1.3 * plan.lease_s + STRANDED_MARGIN_S if plan.lease_s else MAX_STRANDED_S


def _find_observed(notebook: Notebook, models: MarkedModels) -> frozenset[str]:
    """Return the messages that were shown to an observer. A fork, or a message that is said again,
    takes notes back that also cover what stays: the messages of such threads are not counted."""
    said_counts = Counter((turn.thread, turn.said) for turn in notebook.turns)
    forked = {turn.thread for turn in notebook.turns if turn.takes_back}
    forked |= {thread for (thread, _), count in said_counts.items() if count > 1}
    said = {turn.said for turn in notebook.turns if turn.thread not in forked}
    shown = frozenset().union(*(call.marks for call in models.observer_calls))
    return shown & said


async def _talk_in_trouble(
    replicas: Replicas, models: MarkedModels, notebook: Notebook, plan: Plan
) -> None:
    ended = asyncio.Event()
    timeout_s = SHORT_TIMEOUT_S if plan.stop_every_s and not plan.has_ways else REQUEST_TIMEOUT_S
    clients = [
        ReplicaClient(
            number,
            plan.kinds[number % len(plan.kinds)],
            replicas.front,
            replicas.trouble.pause,
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
            or (plan.turns_before_restore and not replicas.trouble.restores)
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
        if plan.disturb_every_s:
            tasks.create_task(replicas.trouble.disturb_ways_until(ended, plan.disturb_every_s))
        if plan.restart_every_s:
            tasks.create_task(replicas.trouble.end_server_until(ended, plan.restart_every_s))
        if plan.turns_before_restore:
            tasks.create_task(
                replicas.trouble.take_server_back(
                    lambda: notebook.count("acknowledged"), plan.turns_before_restore
                )
            )
        for client in clients:
            tasks.create_task(client.talk_until(ended))


def _write_plainly(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    assert isinstance(value, frozenset | tuple)
    return sorted(value) if isinstance(value, frozenset) else list(value)
