"""Play the cases of a benchmark: each session goes through the proxy at its date, and each question
is asked of each system.

The systems: `om` knows the sessions through the proxy alone; `full` gets all of them in its prompt,
`oracle` those that hold the answer, and `none` only the question. All ask one actor in one form, and
one judge reads their replies. The prompts are LongMemEval's own, for every benchmark.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from om_proxy.common.errors import OmError
from om_proxy.proof.evaluation.benchmarks import Benchmark, Case, Message, Question, Session
from om_proxy.proof.evaluation.call_log import MEMORY_STEP, CallRecord, LoggedModels
from om_proxy.proof.evaluation.models import UNSURE_REPLY
from om_proxy.proof.playing import SERVED_STATUSES, count_refused
from om_proxy.proof.stage import Stage

SYSTEMS = ("om", "full", "none", "oracle")
TURN_S = 60.0  # between two turns of a session
RESOURCE = "user"  # the same for all cases: names of the data say where the answer is
PLANTED_QUESTIONS = 10  # whose right, wrong and missing answers the judge is shown
MAX_REPLY_TOKENS = 500
MAX_VERDICT_TOKENS = 10

Row = Mapping[str, Any]  # of cases.jsonl


class CasePlayer:
    """Plays one case after the other. `actor` and `judge` are the names of the models."""

    def __init__(
        self,
        benchmark: Benchmark,
        models: LoggedModels,
        actor: str,
        judge: str,
        systems: Sequence[str],
    ) -> None:
        self._benchmark, self._models = benchmark, models
        self._actor, self._judge = actor, judge
        self._systems = systems

    async def play(self, case: Case) -> Row:
        """Return the row of the case: each system's answer to each question, and its verdict."""
        replies: dict[tuple[str, str], CallRecord] = {}
        counted: Row = {}
        if "om" in self._systems:
            replies, refused = await self._ask_with_memory(case)
            counted = {"refused_calls": dict(sorted((+refused).items()))}
        for system in self._systems:
            for question in case.questions:
                if system != "om":
                    text = write_prompt(system, case.sessions, question)
                    body = build_body(text, self._actor, MAX_REPLY_TOKENS)
                    replies[system, question.name] = await self._ask(system, question, body)
        answers = [
            await self._judge_reply(system, question, replies[system, question.name])
            for question in case.questions
            for system in self._systems
        ]
        return {"case": case.number, "answers": answers, **counted}

    async def judge_planted(self, questions: Sequence[Question]) -> Row:
        """Return how often the judge is right about answers that are known to be right, wrong, or
        missing."""
        chosen = [q for q in questions if not q.is_unanswerable][:PLANTED_QUESTIONS]
        others = [*chosen[1:], *chosen[:1]]
        found = {"right": 0, "wrong": 0, "unsure": 0}
        for question, other in zip(chosen, others, strict=True):
            planted = {"right": question.answer, "wrong": other.answer, "unsure": UNSURE_REPLY}
            for kind, reply in planted.items():
                record = await self._ask_judge(f"planted {kind}", question, reply)
                found[kind] += is_right(record.text) == (kind == "right")
        return {"planted": found, "asked": len(chosen)}

    async def _ask_with_memory(
        self, case: Case
    ) -> tuple[dict[tuple[str, str], CallRecord], Counter[str]]:
        """Return the replies by system and question, and how many memory calls were refused."""
        replies: dict[tuple[str, str], CallRecord] = {}
        recorded: list[str] = []  # what the actor says while sessions are played
        asked: list[Question] = []

        async def answer(request: Mapping[str, Any]) -> str:
            if recorded:
                return recorded.pop()
            body = {
                **build_body("", self._actor, MAX_REPLY_TOKENS),
                "messages": request["messages"],
            }
            record = await self._ask("om", asked[-1], body)
            replies["om", asked[-1].name] = record
            return record.text

        async def note(request: Mapping[str, Any]) -> Mapping[str, Any]:
            return (await self._models.ask(MEMORY_STEP, str(case.number), request)).answer

        async with Stage(
            {"memory": dict(self._benchmark.settings), "telemetry": {"log": "off"}},
            actor=answer,
            memory_model=note,
            now=case.sessions[0].at,
            secret=hashlib.sha256(str(case.number).encode()).digest(),
        ) as stage:
            refused = count_refused(stage)
            for number, session in enumerate(case.sessions, 1):
                await self._play_session(stage, f"{case.number}-{number}", session, recorded)
            for number, question in enumerate(sorted(case.questions, key=_find_time), 1):
                asked.append(question)
                await stage.advance(question.at)
                message = {"role": "user", "content": question.text}
                thread = f"{case.number}-question-{number}"
                await self._chat(stage, thread, [message], {"x-om-mode": "read"})
        return replies, refused

    async def _play_session(
        self, stage: Stage, thread: str, session: Session, recorded: list[str]
    ) -> None:
        for turn, end in enumerate(range(2, len(session.messages) + 1, 2)):
            await stage.advance(session.at + turn * TURN_S)
            recorded.append(session.messages[end - 1]["content"])
            await self._chat(stage, thread, session.messages[: end - 1], {})

    async def _chat(
        self, stage: Stage, thread: str, messages: Sequence[Message], headers: Mapping[str, str]
    ) -> None:
        try:
            turn = await stage.chat(thread, messages, resource=RESOURCE, headers=headers)
        finally:
            self._models.raise_failure()  # it says more than the proxy's own error
        if turn.receipt["status"] not in SERVED_STATUSES:
            raise OmError(
                f"memory did not serve a request ({turn.receipt.get('reason')}), for a fault of this"
                " machine: `om-proxy eval resume` plays the case again"
            )

    async def _ask(self, system: str, question: Question, body: Mapping[str, Any]) -> CallRecord:
        return await self._models.ask(f"actor:{system}", question.name, body, question.answer)

    async def _ask_judge(self, about: str, question: Question, reply: str) -> CallRecord:
        text = render_judge_prompt(question, reply)
        body = build_body(text, self._judge, MAX_VERDICT_TOKENS)
        return await self._models.ask(f"judge:{about}", question.name, body, question.answer)

    async def _judge_reply(self, system: str, question: Question, reply: CallRecord) -> Row:
        verdict = await self._ask_judge(system, question, reply.text)
        return build_answer_row(system, question, reply, verdict, self._benchmark.score)


def build_answer_row(
    system: str,
    question: Question,
    reply: CallRecord,
    verdict: CallRecord,
    score: Callable[[Question, str], float] | None,
) -> Row:
    row = {
        "question": question.name,
        "kind": question.kind,
        "is_unanswerable": question.is_unanswerable,
        "system": system,
        "hypothesis": reply.text,
        "right": is_right(verdict.text),
        "input_tokens": reply.input_tokens,
        "output_tokens": reply.output_tokens,
        "dollars": reply.dollars,
        "model": reply.answer.get("model"),
    }
    return row | ({"f1": score(question, reply.text)} if score else {})


def _find_time(question: Question) -> float:
    return question.at


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────


def render_judge_prompt(question: Question, reply: str) -> str:
    """Return the template of the question's kind, filled in."""
    templates = read_prompts()["judge"]
    kind = "abstention" if question.is_unanswerable else question.kind
    template: str = templates.get(kind) or templates["general"]
    return template.format(question.text, question.answer, reply)


def is_right(verdict: str) -> bool:
    """Read the judge's answer as LongMemEval's script does."""
    return "yes" in verdict.lower()


def write_prompt(system: str, sessions: Sequence[Session], question: Question) -> str:
    """Write the prompt of a system that knows no more than its prompt."""
    match system:
        case "full":
            return render_history_prompt(sessions, question)
        case "oracle":
            evidence = [session for session in sessions if session.name in question.evidence]
            return render_history_prompt(evidence, question)
        case "none":
            return question.text
    raise ValueError(system)


def render_history_prompt(sessions: Sequence[Session], question: Question) -> str:
    """Return the prompt that holds whole sessions, in its JSON form."""
    history = "".join(
        f"\n### Session {number}:\nSession Date: {session.date}\nSession Content:\n"
        f"\n{json.dumps(list(session.messages))}\n"
        for number, session in enumerate(sessions, 1)
    )
    template: str = read_prompts()["answer_from_history"]
    return template.format(history, question.date, question.text)


@cache
def read_prompts() -> dict[str, Any]:
    """Return LongMemEval's prompts, with their source and their licence."""
    file = files("om_proxy.proof.evaluation") / "longmemeval_prompts.json"
    prompts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return prompts


def build_body(text: str, model: str, max_tokens: int) -> dict[str, Any]:
    """Build a request with one message of the user; the same form for every system."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
