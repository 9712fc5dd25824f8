"""A model makes the notes of a replay: what it is sent, what its bill is, and what its notes hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from om_proxy.agents.models import Price, create_encoder
from om_proxy.common.errors import OmError
from om_proxy.proof.conversation import Message, Prefix
from om_proxy.proof.evaluation.call_log import BudgetReached
from om_proxy.proof.evaluation.models import ModelRefused
from om_proxy.proof.model_replay import plan_model_replay, replay_with_model
from om_proxy.proof.playing import Subject
from om_proxy.proof.replay import Result, examine
from om_proxy.proof.replay_table import describe_result, render_results
from om_proxy.proof.scripted_notes import ScriptedNotes
from tests.proof.test_playing import SETTINGS, START, converse

SECRET = "sk-ant-canary0123456789abcdefghij"
PRICE = Price(1e-6, 2e-6, 1e-6, 1e-6)
NEEDED = "src/docks/gate_17.py"


@dataclass
class NotingModel:
    """A scripted model that keeps every line, and remembers what it was sent."""

    prose_count: int = 0  # so many answers are no notes
    failure: OmError | None = None
    price: Price | None = PRICE
    name: str = "noter"
    bodies: list[Mapping[str, Any]] = field(default_factory=list)

    async def complete(self, body: Mapping[str, Any], _gold: str) -> dict[str, Any]:
        self.bodies.append(body)
        if self.failure:
            raise self.failure
        message = dict(await ScriptedNotes(1.0, create_encoder(""))(body))
        usage = message.pop("usage")
        if len(self.bodies) <= self.prose_count:
            message["content"] = "I had rather not."
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"object": "chat.completion", "choices": [choice], "usage": usage}


def create_subject(turn_count: int = 16) -> Subject:
    """Make a conversation whose first message holds a secret and a path that the last reply needs."""
    conversation = converse(turn_count)
    first: Message = {
        "role": "user",
        "content": f"The key is {SECRET}. Gate 17 is opened in {NEEDED}, by a motor.",
        "created_at": START,
    }
    reply: Message = {"role": "assistant", "content": f"See {NEEDED} and {SECRET}."} | {
        "created_at": conversation.calls[-1].replied_at
    }
    messages = (first, *conversation.messages[1:-1], reply)
    calls = tuple(
        replace(call, sent=Prefix(messages, len(call.sent)), reply=messages[len(call.sent)])
        for call in conversation.calls
    )
    changed = replace(conversation, messages=messages, calls=calls)
    subject = examine(changed, settings=SETTINGS)
    assert subject is not None
    return subject


def play_with(model: NotingModel, folder: Path, budget: float | None = None) -> Result:
    (result,) = replay_with_model([create_subject()], model, folder, budget, print)
    return result


def test_the_plan_says_what_would_be_sent(tmp_path: Path) -> None:
    """It is close to what is sent then, and no model is asked for it."""
    model, path = NotingModel(), tmp_path / "history.jsonl"
    plan = plan_model_replay([(path, create_subject())], model, None)
    assert model.bodies == []
    assert plan.files[path] > 3_000
    result = play_with(model, tmp_path)
    assert result.model_notes is not None
    assert plan.calls == pytest.approx(result.model_notes.calls, abs=2)
    assert plan.dollars is not None


def test_no_secret_reaches_the_model(tmp_path: Path) -> None:
    model = NotingModel()
    result = play_with(model, tmp_path)
    assert result.model_notes is not None
    assert "[redacted: Anthropic key]" in str(model.bodies)
    assert SECRET not in str(model.bodies)
    assert SECRET not in str(result.model_notes.needed)


def test_the_model_s_bill_and_notes_are_measured(tmp_path: Path) -> None:
    """In place of assumed lengths; a literal that its notes kept is found there."""
    model = NotingModel()
    result = play_with(model, tmp_path)
    made, bill = result.model_notes, result.with_memory["noter"]["measured"]
    assert made is not None
    assert made.calls == len(model.bodies) > 2
    assert made.refused_calls == 0
    assert 0.5 < made.source_tokens / made.tokens < 2
    assert bill.dollars is not None
    assert NEEDED in made.needed.in_notes
    lines = list(render_results([result], {"c": "Docks"}))
    assert any(line.startswith(" memory, noter ") and "–" not in line for line in lines)
    described = describe_result(result, has_titles=True)
    assert described.model_notes is not None
    assert described.model_notes.needed_later == made.needed.count
    assert described.memory[0].dollars.low is None


def test_answers_that_are_no_notes_count_as_refused(tmp_path: Path) -> None:
    result = play_with(NotingModel(prose_count=2), tmp_path)
    assert result.model_notes is not None
    assert result.model_notes.refused_calls == 2


def test_a_log_spares_calls_that_it_holds(tmp_path: Path) -> None:
    """A budget ends the replay before it is exceeded; with more, it goes on where it was."""
    logs = tmp_path / "whole", tmp_path / "stopped"
    for folder in logs:
        folder.mkdir()
    whole, first, second = NotingModel(), NotingModel(), NotingModel()
    result = play_with(whole, logs[0])
    with pytest.raises(BudgetReached):
        play_with(first, logs[1], budget=0.05)
    assert 0 < len(first.bodies) < len(whole.bodies)
    again = play_with(second, logs[1])
    assert len(first.bodies) + len(second.bodies) == len(whole.bodies)
    assert again.with_memory == result.with_memory


def test_a_model_that_refuses_ends_the_replay(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="wrong key"):
        play_with(NotingModel(failure=ModelRefused("wrong key")), tmp_path)
