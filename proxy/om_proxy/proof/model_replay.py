"""Replay with notes that a model writes: what is sent where, asking it, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from om_proxy.agents.models import create_encoder
from om_proxy.proof.billing import BilledTokens
from om_proxy.proof.evaluation.call_log import (
    MEMORY_STEP,
    CallLog,
    CallRecord,
    LoggedModels,
    sum_dollars,
)
from om_proxy.proof.evaluation.models import AddressedModel, Model, ScriptedModel
from om_proxy.proof.needed import NeededLater, find_notes
from om_proxy.proof.playing import MessageWriter, Play, Subject, count_tokens, play
from om_proxy.proof.replay import (
    MEASURED,
    Bill,
    ModelNotes,
    Progress,
    Result,
    build_result,
    price_bill,
    run_plays,
    sort_results,
)
from om_proxy.proof.stage import Turn
from om_proxy.testing.scripted import message_text

NEW_MESSAGES = "# New messages"  # of the observer's prompt; the reflector's has none


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What a model will be asked, about: a script has played the same."""

    model: Model
    files: Mapping[Path, int]  # tokens of messages
    calls: int
    tokens: BilledTokens

    @property
    def dollars(self) -> float | None:
        price = self.model.price
        if price is None:
            return None
        return self.tokens.prompt * price.input + self.tokens.output * price.output

    @property
    def host(self) -> str:
        match self.model:
            case AddressedModel(base_url=url):
                return urlsplit(url).netloc
            case ScriptedModel():
                return "no host: a script of this program"
        return f"the host that litellm has for {self.model.name}"


def plan_model_replay(
    found: Sequence[tuple[Path, Subject]], model: Model, on_progress: Progress | None
) -> ModelPlan:
    outcomes = run_plays([Play(subject, model.name, MEASURED) for _, subject in found], on_progress)
    files: dict[Path, int] = {}
    for path, subject in found:
        raws = MessageWriter().write(subject.conversation.messages)
        files[path] = files.get(path, 0) + sum(map(count_tokens, raws))
    return ModelPlan(
        model,
        files,
        sum(outcome.notes_calls for outcome in outcomes),
        sum((outcome.memory for outcome in outcomes), BilledTokens()),
    )


def replay_with_model(
    subjects: Sequence[Subject],
    model: Model,
    folder: Path,
    budget: float | None,
    on_spent: Callable[[float], None],
) -> list[Result]:
    """Play all conversations, one after the other, with the model's notes. Calls that the folder's
    log holds are not made again. `on_spent` gets the dollars after each call. Raise BudgetReached,
    and what models raise."""
    models = LoggedModels(CallLog(folder), {MEMORY_STEP: model}, budget)
    made = [asyncio.run(_play(subject, models, model.name, on_spent)) for subject in subjects]
    return sort_results(made)


async def _play(
    subject: Subject, models: LoggedModels, name: str, on_spent: Callable[[float], None]
) -> Result:
    records: list[CallRecord] = []
    needed = NeededLater()

    async def take_notes(request: Mapping[str, Any]) -> Mapping[str, Any]:
        records.append(await models.ask(MEMORY_STEP, subject.conversation.id, request))
        on_spent(models.spent)
        return records[-1].answer

    def take_turn(sent: Sequence[bytes], turn: Turn, reply: bytes) -> None:
        models.raise_failure()  # the proxy hides it from its client
        needed.add_call(sent, turn.prompt, reply)

    outcome = await play(Play(subject, name, MEASURED), take_notes, take_turn)
    models.raise_failure()
    bill = price_bill(outcome.actor, subject.price) + bill_notes(records)
    source_tokens, tokens = measure_notes(records)
    made = ModelNotes(len(records), outcome.refused_calls, source_tokens, tokens, needed)
    return build_result(subject, {name: {MEASURED.name: bill}}, outcome.degraded_calls, made)


def bill_notes(records: Sequence[CallRecord]) -> Bill:
    """Add up what the model's calls cost."""
    tokens = BilledTokens(
        fresh=sum(record.input_tokens for record in records),
        output=sum(record.output_tokens for record in records),
    )
    return Bill(tokens, sum_dollars(record.dollars for record in records))


def measure_notes(records: Sequence[CallRecord]) -> tuple[int, int]:
    """Return the tokens of the messages that the observer was shown, and of its notes on them."""
    count = create_encoder("")
    source = written = 0
    for record in records:
        new = message_text(record.request["messages"][-1]).partition(NEW_MESSAGES)[2]
        if new:
            source += count(new)
            written += count(find_notes(record.text))
    return source, written
