"""The reflector: rewrites a long log shorter, with firmer guidance until it is short enough
(docs/spec/behaviour.md#reflector).

Guidance rises by level. Only an answer that is too long climbs: one that cannot be used (empty, prose, cut off) says nothing about
length, and a firmer level would cost facts for nothing. It is asked for again at its level, from the next model where there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from om_proxy.agents import wording
from om_proxy.agents.asking import Spent
from om_proxy.agents.fitting import fitted
from om_proxy.agents.llm import Answer, ModelSettings, Prompt, Target
from om_proxy.agents.mind import Mind
from om_proxy.errors import BrokenAnswer, CutOff, ModelError, Oversized, Unusable
from om_proxy.memory import sections
from om_proxy.memory.escaping import escape
from om_proxy.memory.observations import Parsed, parse_reflection, refuse_cut_off

MAX_ANSWERS = 4
# What each level asks for, as a share of the notes' size, and as a share of what is accepted where that is less: behind a request
# that a model obeys there is always an answer that is taken, with some room for those that count badly.
SIZE_SHARES: dict[wording.Level, float] = {"none": 0.65, "gentle": 0.55, "strong": 0.4, "stronger": 0.25}
ACCEPTED_SHARES: dict[wording.Level, float] = {"none": 0.9, "gentle": 0.85, "strong": 0.7, "stronger": 0.6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected:
    """A shorter log, and what all calls for it cost. A hint of None: the answer left it out, the old one stays."""

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
    """A level of guidance, and what was wrong with the answer before."""

    level: wording.Level = "none"
    earlier: wording.Earlier | None = None

    def climb(self) -> Attempt:
        """The next level, after an answer that was too long."""
        higher = wording.LEVELS.index(self.level) + 1
        return Attempt(wording.LEVELS[min(higher, len(wording.LEVELS) - 1)], "too-long")

    def repeat(self, earlier: wording.Earlier) -> Attempt:
        """The same level, after an answer that could not be used."""
        return replace(self, earlier=earlier)

    def guidance(self, source_tokens: int, accept_below: int) -> str:
        most = size_asked_for(self.level, source_tokens, accept_below)
        return wording.guidance(self.level, source_tokens=source_tokens, most_tokens=most, earlier=self.earlier)


def size_asked_for(level: wording.Level, source_tokens: int, accept_below: int) -> int:
    """Tokens that a level asks for: always accepted where a model keeps to it."""
    size = min(SIZE_SHARES[level] * source_tokens, ACCEPTED_SHARES[level] * accept_below)
    return max(1, min(int(size), accept_below - 1))


class Reflector(Mind):
    """Turns a long log into a shorter one. A deadline is the caller's, around `reflect`."""

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
        """The first result below `target_tokens`, else the smallest usable one that is smaller than `text`.

        At most `MAX_ANSWERS`. A model that fails ends it, with what there is. Raises Unusable when no answer was both usable and
        smaller, or the ModelError when there was no answer at all.

        `labels`: of a log that several threads share, theirs; `text` is then escaped and in sections already (memory/sections.py),
        and so is what comes back.
        """
        source = await asyncio.to_thread(self._tokens, text)
        best: Reflected | None = None
        failure: ModelError = Oversized("no answer was shorter than the log")
        spent, attempt, models = Spent(), Attempt(), tuple(targets)
        for _ in range(MAX_ANSWERS):
            guidance = attempt.guidance(source, target_tokens)
            try:
                answer, cost = await self._asker.ask(
                    models, self._prompt(text, guidance, instruction, settings, bool(labels))
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
                made = await asyncio.to_thread(self._parsed, answer, source, labels)
            except Oversized as exc:
                failure, attempt = exc, attempt.climb()
                continue
            except Unusable as exc:
                failure, attempt = exc, attempt.repeat("cut-off" if isinstance(exc, CutOff) else "unusable")
                models = (*models[1:], models[0])
                continue
            if made.tokens < min(best.tokens if best else source, source):
                best = made
            if best and best.tokens < target_tokens:
                break
            attempt = attempt.climb()
        if best is None:
            raise failure
        return _paid(best, spent)

    def _prompt(
        self, text: str, guidance: str, instruction: str | None, settings: ModelSettings, threads: bool
    ) -> Callable[[Target], Prompt]:
        """What changes between two tries stands behind the notes, so that the second reads them from the model's prompt cache."""
        system = wording.reflector(instruction=instruction, threads=threads)
        notes = f"<previous-observations>\n{text if threads else escape(text)}\n</previous-observations>"
        user = (notes, guidance)
        return lambda target: fitted(system, user, settings, self._abilities(target.model))

    def _parsed(self, answer: Answer, source_tokens: int, labels: Collection[str]) -> Reflected:
        refuse_cut_off(answer.text, answer.finish)
        said = sections.marked(answer.text, labels) if labels else answer.text
        parsed: Parsed = parse_reflection(said, source_tokens=source_tokens, tokens=self._tokens)
        text = sections.stored(parsed.text, labels) if labels else parsed.text
        return Reflected(
            text=text,
            tokens=self._tokens(text),
            task=parsed.task,
            suggestion=parsed.suggestion,
            model=answer.model,
        )


def _paid(made: Reflected, spent: Spent) -> Reflected:
    return replace(
        made,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cached_tokens=spent.cached_tokens,
        calls=spent.calls,
    )
