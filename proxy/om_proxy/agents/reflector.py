"""The reflector: rewrites a long log shorter, with firmer guidance until it is short enough
(docs/spec/behaviour.md#reflector).

Guidance rises by level, but only after an answer that is too long. An unusable answer (empty, prose,
cut off) says nothing about length, and a firmer level would cost facts for nothing: the reflector
asks again at the same level, the next model where there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from om_proxy.agents import wording
from om_proxy.agents.llm import Answer, ModelSettings, Prompt, Target
from om_proxy.agents.memory_agent import MemoryAgent
from om_proxy.agents.model_limits import clamp_prompt
from om_proxy.agents.retries import CallCost
from om_proxy.errors import BrokenAnswer, CutOff, ModelError, Oversized, Unusable
from om_proxy.memory.escaping import escape
from om_proxy.memory.notes import sections
from om_proxy.memory.notes.observations import ParsedNotes, parse_reflection, refuse_cut_off

MAX_ANSWERS = 4
# A level asks for a share of the notes' size, or of the accepted size where that is less. So an
# answer that keeps to it is always accepted, with some room for models that count badly.
SIZE_SHARES: dict[wording.Level, float] = {
    "none": 0.65,
    "gentle": 0.55,
    "strong": 0.4,
    "stronger": 0.25,
}
ACCEPTED_SHARES: dict[wording.Level, float] = {
    "none": 0.9,
    "gentle": 0.85,
    "strong": 0.7,
    "stronger": 0.6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected:
    """A shorter log, and the cost of all calls for it. A hint of None: the answer left it out, and
    the old one stays."""

    text: str = field(repr=False)
    tokens: int = 0  # of the text
    task: str | None = field(default=None, repr=False)
    suggestion: str | None = field(default=None, repr=False)
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A level of guidance, and the fault of the answer before."""

    level: wording.Level = "none"
    earlier: wording.EarlierFault | None = None

    def climb(self) -> Attempt:
        """Return the next level, after an answer that was too long."""
        higher = wording.LEVELS.index(self.level) + 1
        return Attempt(wording.LEVELS[min(higher, len(wording.LEVELS) - 1)], "too-long")

    def repeat(self, earlier: wording.EarlierFault) -> Attempt:
        """Return the same level, after an unusable answer."""
        return replace(self, earlier=earlier)

    def guidance(self, source_tokens: int, accept_below: int) -> str:
        most = requested_tokens(self.level, source_tokens, accept_below)
        return wording.write_guidance(
            self.level, source_tokens=source_tokens, most_tokens=most, earlier=self.earlier
        )


def requested_tokens(level: wording.Level, source_tokens: int, accept_below: int) -> int:
    """Return the tokens that a level asks for; an answer of that size is always accepted."""
    size = min(SIZE_SHARES[level] * source_tokens, ACCEPTED_SHARES[level] * accept_below)
    return max(1, min(int(size), accept_below - 1))


class Reflector(MemoryAgent):
    """Turns a long log into a shorter one. The caller sets a deadline around `reflect`."""

    async def reflect(
        self,
        text: str,
        *,
        target_tokens: int,
        instruction: str | None,
        targets: Sequence[Target],
        settings: ModelSettings,
        labels: Collection[str] = (),
    ) -> Reflected:
        """Return the first result below `target_tokens`, else the smallest usable one that is smaller
        than `text`.

        It takes at most `MAX_ANSWERS`. A model that fails ends it with the best result so far.
        Raises Unusable if no answer was usable and smaller, or the ModelError if there was none.

        `labels`: of the threads that share the log; `text` and the result are then escaped and in
        sections (memory/notes/sections.py).
        """
        source = await asyncio.to_thread(self._tokens, text)
        best: Reflected | None = None
        failure: ModelError = Oversized("no answer was shorter than the log")
        spent, attempt, models = CallCost(), Attempt(), tuple(targets)
        for _ in range(MAX_ANSWERS):
            guidance = attempt.guidance(source, target_tokens)
            try:
                answer, cost = await self._caller.ask(
                    models,
                    self._prepare_prompt(text, guidance, instruction, settings, bool(labels)),
                )
            except BrokenAnswer as exc:
                failure, attempt = exc, attempt.repeat("cut-off")
                models = (*models[1:], models[0])
                continue
            except ModelError as exc:
                failure = exc
                break
            spent += cost
            try:
                made = await asyncio.to_thread(self._parse_answer, answer, source, labels)
            except Oversized as exc:
                failure, attempt = exc, attempt.climb()
                continue
            except Unusable as exc:
                failure, attempt = (
                    exc,
                    attempt.repeat("cut-off" if isinstance(exc, CutOff) else "unusable"),
                )
                models = (*models[1:], models[0])
                continue
            if made.tokens < min(best.tokens if best else source, source):
                best = made
            if best and best.tokens < target_tokens:
                break
            attempt = attempt.climb()
        if best is None:
            raise failure
        return _add_cost(best, spent)

    def _prepare_prompt(
        self,
        text: str,
        guidance: str,
        instruction: str | None,
        settings: ModelSettings,
        threads: bool,
    ) -> Callable[[Target], Prompt]:
        """Put the guidance behind the notes: a second try reads them from the model's prompt
        cache."""
        system = wording.write_reflector_prompt(instruction=instruction, threads=threads)
        notes = f"<previous-observations>\n{text if threads else escape(text)}\n</previous-observations>"
        user = (notes, guidance)
        return lambda target: clamp_prompt(system, user, settings, self._abilities(target.model))

    def _parse_answer(
        self, answer: Answer, source_tokens: int, labels: Collection[str]
    ) -> Reflected:
        refuse_cut_off(answer.text, answer.finish)
        said = sections.mark_tags(answer.text, labels) if labels else answer.text
        parsed: ParsedNotes = parse_reflection(
            said, source_tokens=source_tokens, tokens=self._tokens
        )
        text = sections.restore_tags(parsed.text, labels) if labels else parsed.text
        return Reflected(
            text=text,
            tokens=self._tokens(text),
            task=parsed.task,
            suggestion=parsed.suggestion,
            model=answer.model,
        )


def _add_cost(made: Reflected, spent: CallCost) -> Reflected:
    return replace(
        made,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cached_tokens=spent.cached_tokens,
        calls=spent.calls,
    )
