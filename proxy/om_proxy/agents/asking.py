"""Asks a list of models until one answers: three tries in all, with full jitter, or as long as the server says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from om_proxy.agents.llm import LLM, Answer, Prompt, Target
from om_proxy.errors import BrokenAnswer, ModelBusy, ModelError, PromptTooLong

TRIES = 3  # docs/spec/behaviour.md#failures; of a longer list every model gets one
BASE = 1.0  # seconds; the first wait is drawn from [0, BASE], each further one from twice that
LONGEST_WAIT = 30.0  # seconds; a server that wants more is not asked again now: the thread backs off instead


@dataclass(frozen=True, slots=True)
class Spent:
    """What calls have cost, those without a usable answer included. `cached_tokens` are a part of `input_tokens`."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


class Asker:
    """`tokens` counts tokens where a server reports none; `sleep` and `rng` come in so that tests wait for nothing."""

    def __init__(
        self,
        llm: LLM,
        *,
        tokens: Callable[[str], int],
        sleep: Callable[[float], Awaitable[object]],
        rng: Random,
    ) -> None:
        self._llm = llm
        self._tokens = tokens
        self._sleep = sleep
        self._rng = rng

    async def ask(self, targets: Sequence[Target], prompt: Callable[[Target], Prompt]) -> tuple[Answer, Spent]:
        """The first answer, and what it took to get it.

        A busy model is asked again, after a wait, as often as `schedule` says; a model that fails otherwise is not. Raises
        the last ModelError; PromptTooLong or BrokenAnswer at once: the next model would be sent the same, and less is what helps.
        """
        order = schedule(targets)
        failed: ModelError = ModelError("no model to ask")
        calls = 0
        while order:
            target, *order = order
            calls += 1
            asked = prompt(target)
            try:
                answer = await self._llm.complete(target, asked)
            except (PromptTooLong, BrokenAnswer):
                raise
            except ModelError as exc:
                failed = exc
                again = isinstance(exc, ModelBusy) and target in order and await self._waited(exc, calls)
                order = order if again else [other for other in order if other != target]
            else:
                return answer, self._spent(asked, answer, calls)
        raise failed

    async def _waited(self, busy: ModelBusy, calls: int) -> bool:
        """Wait before asking the same model again; False, having waited for nothing, if it wants to be left alone for longer."""
        if busy.retry_after is None:
            await self._sleep(self._rng.uniform(0, BASE * 2 ** (calls - 1)))
            return True
        if busy.retry_after > LONGEST_WAIT:
            return False
        await self._sleep(busy.retry_after + self._rng.uniform(0, BASE))  # not all threads in the same instant
        return True

    def _spent(self, prompt: Prompt, answer: Answer, calls: int) -> Spent:
        texts = (prompt.system, *(part for part in prompt.user if isinstance(part, str)))
        return Spent(
            calls,
            answer.input_tokens or sum(map(self._tokens, texts)),
            answer.output_tokens or self._tokens(answer.text),
            answer.cached_tokens,
        )


def schedule(targets: Sequence[Target]) -> list[Target]:
    """Every model once, in order; tries that are left go to the first models, as far as their `max_retries` allow."""
    left = max(TRIES - len(targets), 0)
    order: list[Target] = []
    for target in targets:
        again = min(target.max_retries, left)
        left -= again
        order += [target] * (1 + again)
    return order
