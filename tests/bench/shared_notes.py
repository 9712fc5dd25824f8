"""What a new thread of a resource is told of all that was said in others: recorded conversations,
one thread a session.

Every turn carries its own mark. A note-taker that keeps each mark stands in the memory models'
place, so that what is missing was lost by the proxy and not by a model. A week after the last
session a new thread asks; counted is the evidence of all questions that stands in its prompt, and
how often a warm thread's prompt did not go on from the one before, while new threads begin beside
it.

Run by `scripts/bench shared`; ends with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import orjson

from om_proxy.app.app import App
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.observability import logs
from om_proxy.settings.config import parse
from om_proxy.testing import loopback
from om_proxy.testing.loopback import Receive, Scope, Send, serve_on_loopback
from om_proxy.testing.scripted import message_text
from tests.e2e.replay import SHARED, Message
from tests.e2e.running import Clock

LEAST_EVIDENCE = 0.99  # of all questions' evidence, in the prompt of a new thread after a pause
TURN_S, WEEK_S, HOUR_S = 60.0, 7 * 86_400.0, 3_600.0
IDLE = "scope: resource"
WITHOUT_IDLE = "scope: resource, observation: {buffer_on_idle: false}"
SETTINGS = {"defaults": IDLE, "buffer_on_idle: false": WITHOUT_IDLE}
KEPT_CHARACTERS = 60  # of a turn, in its note

_MARK = re.compile(r"\[(D\d+:\d+)\] ?(.*)")
_THREAD = re.compile(r'<thread id="([0-9a-f]{16})">\n(.*?)\n</thread>', re.DOTALL)
_EVIDENCE = re.compile(r"D\d+:\d+")


@dataclass(frozen=True, slots=True)
class Session:
    at: float  # unix seconds
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Recording:
    sessions: Sequence[Session]
    evidence: Sequence[str]  # marks, one for each question and turn


@dataclass(slots=True)
class Found:
    """What came of one recording."""

    told: int = 0  # of `evidence`
    evidence: int = 0
    breaks: int = 0
    warm: int = 0  # requests of a warm thread
    log: int = 0  # tokens
    calls: int = 0  # of the memory model

    @property
    def share(self) -> float:
        return self.told / max(self.evidence, 1)


# ── recordings ────────────────────────────────────────────────────────────────────────────────────


def recordings(path: Path) -> Iterator[Recording]:
    for one in json.loads(path.read_text(encoding="utf-8")):
        said, speaker = one["conversation"], one["conversation"]["speaker_a"]
        names = [f"session_{n}" for n in range(1, 100) if said.get(f"session_{n}")]
        sessions = [
            Session(_seconds(said[f"{name}_date_time"]), merged(said[name], speaker))
            for name in names
        ]
        marks = {turn["dia_id"] for name in names for turn in said[name]}
        asked = [
            mark
            for question in one["qa"]
            for text in question["evidence"]
            for mark in _EVIDENCE.findall(text)
        ]
        yield Recording(sessions, [mark for mark in asked if mark in marks])


def _seconds(written: str) -> float:
    return datetime.strptime(written, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()


def merged(turns: Sequence[Mapping[str, str]], user: str) -> list[Message]:
    """Messages that alternate, each turn behind its mark; the last one is the assistant's."""
    messages: list[Message] = []
    for turn in turns:
        role = "user" if turn["speaker"] == user else "assistant"
        text = f"[{turn['dia_id']}] {turn['text']}"
        if messages and messages[-1]["role"] == role:
            messages[-1] = {"role": role, "content": f"{messages[-1]['content']}\n{text}"}
        else:
            messages.append({"role": role, "content": text})
    if messages and messages[-1]["role"] == "user":
        messages.append({"role": "assistant", "content": "Yes."})
    return messages


# ── the models ────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Models:
    """The actor says what a request's header tells it to; the memory model keeps every mark with
    the first words behind it."""

    prompts: list[list[Message]] = field(default_factory=list)  # of the actor
    calls: int = 0  # of the memory model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = orjson.loads(await loopback.read_body(receive))
        headers = dict(scope["headers"])
        if b"x-test-reply" in headers:
            self.prompts.append(request["messages"])
            answer = bytes.fromhex(headers[b"x-test-reply"].decode()).decode()
        else:
            self.calls += 1
            answer = noted(message_text(request["messages"][-1]))
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": answer},
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "n", "object": "chat.completion", "created": 1, "model": request["model"]}
        await loopback.send_json(send, 200, {**head, "choices": [choice], "usage": usage})


def noted(asked: str) -> str:
    """An observer's answer about several conversations or one, or a reflector's."""
    new = asked.partition("# New messages")[2]
    if sections := _THREAD.findall(new or asked):
        inside = "\n".join(
            f'<thread id="{label}">\n{_bullets(text)}\n</thread>' for label, text in sections
        )
    else:
        inside = _bullets(new or asked)
    return f"<observations>\n{inside}\n</observations>"


def _bullets(text: str) -> str:
    marks = dict.fromkeys(
        f"* 🟡 (10:00) [{mark}] {said[:KEPT_CHARACTERS].strip()}"
        for mark, said in _MARK.findall(text)
    )
    return "\n".join(["Date: May 8, 2023", *(marks or ["* 🟡 (10:00) nothing was said"])])


# ── playing ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Player:
    app: App
    client: httpx.AsyncClient
    clock: Clock
    models: Models

    async def ask(self, thread: str, messages: Sequence[Message], reply: str) -> list[Message]:
        """One request; the prompt that went upstream, when what it made due is done."""
        headers = {
            "x-om-thread": thread,
            "x-om-resource": "bench",
            "x-test-reply": reply.encode().hex(),
        }
        body = orjson.dumps({"model": "actor", "messages": messages})
        answer = await self.client.post("/v1/chat/completions", content=body, headers=headers)
        answer.raise_for_status()
        await self.app.background.wait_idle()
        return self.models.prompts[-1]

    async def wait(self, seconds: float) -> None:
        """Time passes, and what is due by then is done: the store says what, as to a process that
        looks for it."""
        self.clock.now += seconds
        while due := await self.app.store.due_threads(self.clock.now, 100):
            for key in due:
                self.app.background.wake(key)
            await self.app.background.wait_idle()


async def played(recording: Recording, settings: str) -> Found:
    found, models, clock = (
        Found(evidence=len(recording.evidence)),
        Models(),
        Clock(recording.sessions[0].at),
    )
    with tempfile.TemporaryDirectory(prefix="om-bench-") as folder:
        async with serve_on_loopback(models, lifespan="off") as upstream:
            app = App(parse(_configuration(Path(folder), upstream, settings)), clock=clock)
            async with (
                serve_on_loopback(app) as base,
                httpx.AsyncClient(
                    base_url=base,
                    headers={"authorization": "Bearer sk-bench"},
                    trust_env=False,
                    timeout=60,
                ) as client,
            ):
                player = Player(app, client, clock, models)
                for number, session in enumerate(recording.sessions):
                    await player.wait(max(session.at - clock.now, 0.0))
                    await _visit(player, number, session, found)
                    await player.wait(HOUR_S / 2)
                    await player.wait(HOUR_S)
                await player.wait(WEEK_S)
                prompt = await player.ask(
                    "question", [{"role": "user", "content": "What do you know of us?"}], "Much."
                )
                (shared_log,) = [
                    await app.store.load(Key(i.key.tenant, i.key.resource, RESOURCE_THREAD))
                    for i in await app.store.threads(None, limit=1)
                ]
    told = set(_EVIDENCE.findall("\n".join(map(message_text, prompt))))
    found.told = sum(mark in told for mark in recording.evidence)
    found.log, found.calls = shared_log.log.tokens, models.calls
    return found


async def _visit(player: Player, number: int, session: Session, found: Found) -> None:
    """A session in a thread of its own; half way through it another thread begins beside it."""
    before: list[Message] = []
    asked = [
        n for n, message in enumerate(session.messages) if message["role"] == "assistant" and n
    ]
    for n in asked:
        prompt = await player.ask(
            f"session-{number}", session.messages[:n], str(session.messages[n]["content"])
        )
        found.warm += bool(before)
        found.breaks += bool(before) and prompt[: len(before)] != before
        before = prompt
        if n == asked[len(asked) // 2]:
            await player.ask(
                f"aside-{number}", [{"role": "user", "content": "What is new?"}], "Much."
            )
        await player.wait(TURN_S)


def _configuration(folder: Path, upstream: str, settings: str) -> str:
    return f"""
upstream: [{{name: recorded, match: ["*"], base_url: "{upstream}/v1", layout: blocks}}]
storage: {{url: "sqlite:///{folder}/om.db"}}
background: {{observer_interval: 1h}}
memory: {{model: "openai/keeps-all", api_base: "{upstream}/v1", api_key: sk-notes, {settings}}}
telemetry: {{log: "off"}}
"""


# ── the report ────────────────────────────────────────────────────────────────────────────────────


async def report(path: Path, most: int) -> bool:
    kept = True
    for name, settings in SETTINGS.items():
        print(
            f"\n{name}\n\n  {'':>3}{'sessions':>10}{'evidence':>10}{'told':>8}{'breaks':>16}{'log tokens':>12}{'calls':>7}"
        )
        whole = Found()
        for number, recording in enumerate(list(recordings(path))[:most], 1):
            found = await played(recording, settings)
            breaks = f"{found.breaks} of {found.warm}"
            print(
                f"  {number:>3}{len(recording.sessions):>10}{found.evidence:>10}{found.share:>8.1%}{breaks:>16}"
                f"{found.log:>12}{found.calls:>7}",
                flush=True,
            )
            for figure in ("told", "evidence", "breaks", "warm", "calls"):
                setattr(whole, figure, getattr(whole, figure) + getattr(found, figure))
        print(
            f"  all {'':>9}{whole.evidence:>10}{whole.share:>8.1%}{f'{whole.breaks} of {whole.warm}':>16}{'':>12}{whole.calls:>7}"
        )
        kept &= whole.breaks == 0 and (settings != IDLE or whole.share >= LEAST_EVIDENCE)
    if not kept:
        print(
            f"\n  BROKEN: {LEAST_EVIDENCE:.0%} of the evidence is told, and no warm thread's prefix breaks",
            file=sys.stderr,
        )
    return kept


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/bench shared", description=__doc__)
    options.add_argument(
        "--data", type=Path, default=SHARED, help="folder of the recorded conversations"
    )
    options.add_argument("--most", type=int, default=10, help="conversations")
    chosen = options.parse_args()
    logs.configure_log("off")
    path = chosen.data / "locomo10.json"
    if not path.exists():
        raise SystemExit(
            f"scripts/bench: no {path.name} in {path.parent}; name its folder with --data"
        )
    return 0 if asyncio.run(report(path, chosen.most)) else 1


if __name__ == "__main__":
    sys.exit(main())
