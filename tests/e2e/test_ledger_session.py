"""The ledger of the recorded coding session: what it would have cost without memory is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from om_proxy.agents.models import create_encoder
from om_proxy.app.app import App
from om_proxy.engine.policy import find_token_prices
from om_proxy.engine.turns import accounting
from om_proxy.memory import ledger as ledger_module
from om_proxy.memory.ledger import EMPTY_LEDGER, ThreadLedger, add_turn, assess_turn
from om_proxy.memory.token_prices import Tokens, price_tokens
from om_proxy.proof.billing import ANTHROPIC, BilledTokens, SentPrompt, bill_calls
from om_proxy.proof.recorder import Recorder
from om_proxy.proof.scripted_notes import ScriptedNotes
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from tests.bench.cost import CODING, DEVIATION, fitted
from tests.bench.recordings import Session
from tests.bench.recordings import coding_session as load_session
from tests.bench.replaying import HEADERS, Model
from tests.e2e.replay import SHARED
from tests.e2e.running import Clock

AssessedTurn = tuple[tuple[Any, ...], dict[str, Any]]
"""What one turn was assessed with: the positional arguments and the named ones."""


class BillingModel(Model):
    """The recorded model server. It reports the usage of what it got: its cache keeps what
    Anthropic's keeps, and is lost where the recorded one was lost."""

    def __init__(self, session: Session, clock: Clock) -> None:
        super().__init__(session.calls, clock)
        self._timed = session.calls
        self._reading = fitted(session)
        self._asked: deque[SentPrompt] = deque()
        self._bills = bill_calls(self._iterate_asked(), ANTHROPIC, session.lost)
        self.bills: list[BilledTokens] = []

    def _iterate_asked(self) -> Iterator[SentPrompt]:
        while self._asked:
            yield self._asked.popleft()

    @staticmethod
    async def _whole(send: Any, reply: Any, reason: str) -> None:
        raise NotImplementedError  # see __call__

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        index = int(dict(scope["headers"])[b"x-test-call"])
        call = self._timed[index]
        self._clock.now = call.replied_at
        self._asked.append(self._reading.sent(call, orjson.loads(body)["messages"]))
        bill = next(self._bills)
        self.bills.append(bill)
        reason = "tool_calls" if call.reply.get("tool_calls") else "stop"
        content = orjson.dumps(
            {
                "id": "r",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "message": call.reply, "finish_reason": reason}],
                "usage": {
                    "prompt_tokens": bill.prompt,
                    "completion_tokens": bill.output,
                    "prompt_tokens_details": {
                        "cached_tokens": bill.read,
                        "cache_write_tokens": bill.written,
                    },
                },
            }
        )
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def play(folder: Path, session: Session, model: BillingModel, clock: Clock) -> ThreadLedger:
    """Play the session through a live proxy at its recorded times. Return the thread's ledger."""
    taker = ScriptedNotes(CODING, create_encoder(""))
    async with (
        serve_on_loopback(model, lifespan="off") as upstream,
        serve_on_loopback(Recorder({"/v1": taker}), lifespan="off") as notes,
    ):
        settings = parse(
            f"""
            upstream: [{{name: r, match: ["*"], base_url: "{upstream}/v1", layout: blocks}}]
            storage: {{url: "sqlite:///{folder}/om.db"}}
            memory: {{model: openai/gemini-2.5-flash, api_base: "{notes}/v1", api_key: sk-notes}}
            telemetry: {{log: "off"}}
            """
        )
        app = App(settings, clock=clock)
        async with (
            serve_on_loopback(app) as base,
            httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client,
        ):
            for number, call in enumerate(session.calls):
                clock.now = call.asked_at
                body = orjson.dumps({"model": session.model, "messages": call.sent})
                headers = HEADERS | {"x-om-thread": "session", "x-test-call": str(number)}
                answer = await client.post("/v1/chat/completions", content=body, headers=headers)
                answer.raise_for_status()
                await app.background.wait_idle()
            (info,) = await app.store.threads(None)
            return (await app.store.load(info.key)).ledger


def price_call(bill: BilledTokens, model: str) -> int:
    """Return the bill of one call in micro-dollars."""
    used = Tokens(bill.fresh, bill.read, bill.written, bill.output)
    return price_tokens(used, find_token_prices(model))


def replay_with(turns: list[AssessedTurn]) -> int:
    """Return the baseline of these turns by the rule that stands in the module now."""
    ledger = EMPTY_LEDGER
    for arguments, named in turns:
        ledger = add_turn(ledger, assess_turn(ledger, *arguments, **named))
    return ledger.full.baseline_cost


@pytest.mark.slow
async def test_the_baseline_of_the_coding_session_with_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory nobody pays for the full history, so the baseline is an estimate: within 15 % of
    the recorded bill. The cost is what the provider reports. Of two simpler rules, a baseline
    without a cache and one with a cache that loses nothing, both miss the bill."""
    path = SHARED / "coding-session.jsonl"
    if not path.exists():
        pytest.skip("the shared coding session is not here: ../shared/data/coding-session.jsonl")
    session, clock = load_session(path), Clock()
    recorded = sum(usage["cost"]["total"] for usage in session.recorded)
    turns: list[AssessedTurn] = []

    def assess(ledger: ThreadLedger, *arguments: Any, **named: Any) -> Any:
        turns.append((arguments, named))
        return assess_turn(ledger, *arguments, **named)

    monkeypatch.setattr(accounting, "assess_turn", assess)
    model = BillingModel(session, clock)
    ledger = await play(tmp_path, session, model, clock)
    full = ledger.full
    assert (full.calls, full.estimated, len(turns)) == (439, 0, 439)
    assert full.cost == sum(price_call(bill, session.model) for bill in model.bills)
    assert full.baseline_cost / 1e6 == pytest.approx(recorded, rel=DEVIATION)
    assert ledger.full_memory.cost > 0
    assert ledger.net_saving > 0
    assert replay_with(turns) == full.baseline_cost

    def project_fresh(reported: Tokens, sent: Any, other: Any, prompt: int, share: Any) -> Tokens:
        return Tokens(prompt, 0, 0, reported.output)

    def project_perfect(reported: Tokens, sent: Any, other: Any, prompt: int, share: Any) -> Tokens:
        cached = other.repeated * reported.prompt // sent.tokens
        return Tokens(0, cached, prompt - cached, reported.output)

    for rule in (project_fresh, project_perfect):
        monkeypatch.setattr(ledger_module, "_project", rule)
        assert replay_with(turns) / 1e6 != pytest.approx(recorded, rel=2 * DEVIATION)
