"""Estimate what a run will take, before any model is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from om_proxy.agents.models import Price, create_encoder
from om_proxy.proof.evaluation.case_player import PLANTED_QUESTIONS, write_prompt
from om_proxy.proof.evaluation.cases import Case, Session

# tokens; measured in November 2026, and rounded up
TOKENS_OF_A_NOTE_PROMPT = 4_000  # guidance and earlier notes, in each call for notes
SOURCE_TOKENS_OF_A_NOTE_TOKEN = 2.8
REPLY_TOKENS = 100
JUDGE_INPUT_TOKENS, JUDGE_OUTPUT_TOKENS = 300, 5
PLANTED_REPLIES = 3  # to each planted question


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """The calls of one step. `dollars` is None if the model's price is not known."""

    step: str
    calls: int
    input_tokens: int
    output_tokens: int
    dollars: float | None


def estimate_run(
    cases: Sequence[Case], systems: Sequence[str], prices: Mapping[str, Price | None]
) -> list[StepEstimate]:
    """Return the calls of each step. Notes take one call for each
    session."""
    count = create_encoder("")
    found: list[StepEstimate] = []

    def add(step: str, sizes: Sequence[int], output_tokens: int) -> None:
        price = prices[step.partition(":")[0]]
        read = sum(sizes)
        dollars = read * price.input + output_tokens * price.output if price else None
        found.append(StepEstimate(step, len(sizes), read, output_tokens, dollars))

    questions = sum(len(case.questions) for case in cases)
    sizes = {case.number: [_count(session, count) for session in case.sessions] for case in cases}
    for system in systems:
        if system == "om":
            source = [size for case in cases for size in sizes[case.number]]
            notes = round(sum(source) / SOURCE_TOKENS_OF_A_NOTE_TOKEN)
            add("memory", [TOKENS_OF_A_NOTE_PROMPT + size for size in source], notes)
            logs = [
                round(sum(sizes[case.number]) / SOURCE_TOKENS_OF_A_NOTE_TOKEN)
                for case in cases
                for _ in case.questions
            ]
            add("actor:om", logs, questions * REPLY_TOKENS)
        else:
            prompts = [
                count(write_prompt(system, case.sessions, question))
                for case in cases
                for question in case.questions
            ]
            add(f"actor:{system}", prompts, questions * REPLY_TOKENS)
    verdicts = questions * len(systems) + PLANTED_QUESTIONS * PLANTED_REPLIES
    add("judge", [JUDGE_INPUT_TOKENS] * verdicts, verdicts * JUDGE_OUTPUT_TOKENS)
    return found


def sum_dollars(steps: Sequence[StepEstimate]) -> float | None:
    """Return the dollars of all steps; None if a price is not known."""
    known = [step.dollars for step in steps if step.dollars is not None]
    return sum(known) if len(known) == len(steps) else None


def render_rows(steps: Sequence[StepEstimate]) -> Iterator[tuple[str, ...]]:
    for step in steps:
        dollars = "price not known" if step.dollars is None else f"{step.dollars:.2f}"
        numbers = (step.calls, step.input_tokens, step.output_tokens)
        yield step.step, *map(str, numbers), dollars


def _count(session: Session, count: Callable[[str], int]) -> int:
    return sum(count(message["content"]) for message in session.messages)
