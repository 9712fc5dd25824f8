"""Rewrite a long log shorter, with firmer guidance until the log is short enough
(docs/contributing/behaviour.md#reflector).

Guidance rises by one level after each answer that is too long. An unusable answer (empty, prose, cut
off) says nothing about length, and a firmer level would cost facts for nothing. So the reflector asks
again at the same level, and asks the next model if there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from om_proxy.agents import wording
from om_proxy.agents.memory_agent import MemoryAgent, clamp_prompt
from om_proxy.agents.model_access.llm import Answer, ModelSettings, Prompt, Target
from om_proxy.agents.model_access.retries import CallBill
from om_proxy.common.errors import BrokenAnswer, CutOff, ModelError, Oversized, Unusable
from om_proxy.memory.escaping import escape
from om_proxy.memory.notes import sections
from om_proxy.memory.notes.observations import ParsedNotes, parse_reflection, refuse_cut_off

MAX_ANSWERS = 4
# A level asks for a share of the accepted size. So an answer of the requested size is always
# accepted, with some room for models that count badly.
REQUESTED_SHARES: dict[wording.Level, float] = {
    "none": 0.89,
    "gentle": 0.8,
    "strong": 0.65,
    "stronger": 0.45,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected:
    """A shorter log. If a hint is None, the answer left the hint out, and the old one stays."""

    text: str = field(repr=False)
    tokens: int = 0  # of the text
    task: str | None = field(default=None, repr=False)
    suggestion: str | None = field(default=None, repr=False)
    model: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A level of guidance, and the fault of the answer before this attempt."""

    level: wording.Level = "none"
    earlier: wording.EarlierFault | None = None
    depth: int = 0  # how often the notes were condensed before

    def climb(self) -> Attempt:
        """Return the next level, after an answer that was too long."""
        higher = wording.LEVELS.index(self.level) + 1
        level = wording.LEVELS[min(higher, len(wording.LEVELS) - 1)]
        return replace(self, level=level, earlier="too-long")

    def repeat(self, earlier: wording.EarlierFault) -> Attempt:
        """Return the same level, after an unusable answer."""
        return replace(self, earlier=earlier)

    def write_guidance(self, source_tokens: int, accept_below: int) -> str:
        max_tokens = compute_requested_tokens(self.level, accept_below)
        return wording.write_guidance(
            self.level,
            source_tokens=source_tokens,
            max_tokens=max_tokens,
            earlier=self.earlier,
            depth=self.depth,
        )


def compute_requested_tokens(level: wording.Level, accept_below: int) -> int:
    """Return the tokens that a level asks for. An answer of that size is always accepted."""
    return max(1, min(int(REQUESTED_SHARES[level] * accept_below), accept_below - 1))


class Reflector(MemoryAgent):
    """The agent that turns a long log into a shorter one. The caller sets a deadline around
    `reflect`."""

    async def reflect(
        self,
        text: str,
        *,
        target_tokens: int,
        instruction: str | None,
        targets: Sequence[Target],
        settings: ModelSettings,
        labels: Collection[str] = (),
        depth: int = 0,
        bill: CallBill | None = None,
    ) -> Reflected:
        """Return the first result below `target_tokens`, else the smallest usable one that is smaller
        than `text`.

        At most `MAX_ANSWERS` answers are asked for. If a model fails, the best result so far is
        returned. Raises Unusable if no answer was usable and smaller, or the ModelError if there
        was no answer.

        `labels`: the labels of the threads that share the log. `text` and the result are then
        escaped and in sections (memory/notes/sections.py). `depth`: how often they were condensed
        before. `bill` gets the calls that are paid for,
        also if this raises.
        """
        source_tokens = await asyncio.to_thread(self._tokens, text)
        best: Reflected | None = None
        failure: ModelError = Oversized("no answer was shorter than the log")
        attempt = Attempt(depth=depth)
        models = tuple(targets)
        for _ in range(MAX_ANSWERS):
            guidance = attempt.write_guidance(source_tokens, target_tokens)
            try:
                answer = await self._caller.ask(
                    models,
                    self._prepare_prompt(text, guidance, instruction, settings, bool(labels)),
                    bill,
                )
            except BrokenAnswer as exc:
                failure = exc
                attempt = attempt.repeat("cut-off")
                models = (*models[1:], models[0])
                continue
            except ModelError as exc:
                failure = exc
                break
            try:
                result = await asyncio.to_thread(self._parse_answer, answer, source_tokens, labels)
            except Oversized as exc:
                failure = exc
                attempt = attempt.climb()
                continue
            except Unusable as exc:
                failure = exc
                attempt = attempt.repeat("cut-off" if isinstance(exc, CutOff) else "unusable")
                models = (*models[1:], models[0])
                continue
            if result.tokens < min(best.tokens if best else source_tokens, source_tokens):
                best = result
            if best and best.tokens < target_tokens:
                break
            attempt = attempt.climb()
        if best is None:
            raise failure
        return best

    def _prepare_prompt(
        self,
        text: str,
        guidance: str,
        instruction: str | None,
        settings: ModelSettings,
        threads: bool,
    ) -> Callable[[Target], Prompt]:
        """Return the function that writes the prompt for a model. The guidance comes after the
        notes, so that a second try reads the notes from the model's prompt cache."""
        system = wording.write_reflector_prompt(instruction=instruction, threads=threads)
        notes = f"<previous-observations>\n{text if threads else escape(text)}\n</previous-observations>"
        user = (notes, guidance)
        return lambda target: clamp_prompt(system, user, settings, self._abilities(target.model))

    def _parse_answer(
        self, answer: Answer, source_tokens: int, labels: Collection[str]
    ) -> Reflected:
        refuse_cut_off(answer.text, answer.finish)
        answer_text = sections.mark_tags(answer.text, labels) if labels else answer.text
        parsed: ParsedNotes = parse_reflection(
            answer_text, source_tokens=source_tokens, tokens=self._tokens
        )
        text = sections.restore_tags(parsed.text, labels) if labels else parsed.text
        return Reflected(
            text=text,
            tokens=self._tokens(text),
            task=parsed.task,
            suggestion=parsed.suggestion,
            model=answer.model,
        )
