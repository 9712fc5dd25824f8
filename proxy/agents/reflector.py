"""The reflector: rewrites a long log shorter, with firmer guidance until it is short enough (behaviour.md 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from proxy.agents import wording
from proxy.agents.asking import Spent
from proxy.agents.fitting import fitted
from proxy.agents.llm import Answer, ModelSettings, Prompt, Target
from proxy.agents.mind import Mind
from proxy.errors import ModelError, Unusable
from proxy.memory import sections
from proxy.memory.escaping import escape
from proxy.memory.observations import Parsed, parse_reflection


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

        At most four answers, one for each level of guidance. A model that fails ends it, with what there is. Raises
        Unusable when no answer was both usable and smaller, or the ModelError when there was no answer at all.

        `labels`: of a log that several threads share, theirs; `text` is then escaped and in sections already (memory/sections.py),
        and so is what comes back.
        """
        source = await asyncio.to_thread(self._tokens, text)
        best: Reflected | None = None
        failure: ModelError = Unusable("no answer was shorter than the log")
        spent = Spent()
        for level in wording.LEVELS:
            try:
                answer, cost = await self._asker.ask(
                    targets, self._prompt(text, level, instruction, settings, bool(labels))
                )
            except ModelError as exc:
                failure = exc
                break
            spent += cost
            try:
                made = await asyncio.to_thread(self._parsed, answer, source, labels)
            except Unusable as exc:
                failure = exc
                continue
            if made.tokens < min(best.tokens if best else source, source):
                best = made
            if best and best.tokens < target_tokens:
                break
        if best is None:
            raise failure
        return _paid(best, spent)

    def _prompt(
        self, text: str, level: wording.Level, instruction: str | None, settings: ModelSettings, threads: bool
    ) -> Callable[[Target], Prompt]:
        system = wording.reflector(level, instruction=instruction, threads=threads)
        user = (
            f"<previous-observations>\n{text if threads else escape(text)}\n</previous-observations>",
            "Rewrite these notes now, in the format you were told and nothing else.",
        )
        return lambda target: fitted(system, user, settings, self._abilities(target.model))

    def _parsed(self, answer: Answer, source_tokens: int, labels: Collection[str]) -> Reflected:
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
