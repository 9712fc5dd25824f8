"""Ask a list of models until one answers: three tries in all, with full jitter, or after the wait
that the server names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from om_proxy.agents.llm import LLM, Answer, Prompt, Target
from om_proxy.errors import BrokenAnswer, ModelBusy, ModelError, PromptTooLong

MAX_TRIES = 3  # docs/spec/behaviour.md#failures; in a longer list every model gets one
# the first wait is drawn from [0, FIRST_WAIT_S], each further one from twice that
FIRST_WAIT_S = 1.0
# a server that wants a longer wait is not asked again now: the thread backs off instead
MAX_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of calls, those without a usable answer included. `cached_tokens` are a part of
    `input_tokens`."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: CallCost) -> CallCost:
        return CallCost(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


class ModelCaller:
    """`tokens` counts tokens where a server reports none; tests pass `sleep` and `rng` so as not to
    wait."""

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

    async def ask(
        self, targets: Sequence[Target], prompt: Callable[[Target], Prompt]
    ) -> tuple[Answer, CallCost]:
        """Return the first answer, and the cost of getting it.

        A busy model is asked again after a wait, as often as `schedule_tries` says; a model with
        another fault is not. Raises the last ModelError. Raises PromptTooLong or BrokenAnswer at
        once: the next model would get the same prompt, and only a shorter one helps.
        """
        order = schedule_tries(targets)
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
                again = (
                    isinstance(exc, ModelBusy)
                    and target in order
                    and await self._wait_for_retry(exc, calls)
                )
                order = order if again else [other for other in order if other != target]
            else:
                return answer, self._sum_cost(asked, answer, calls)
        raise failed

    async def _wait_for_retry(self, busy: ModelBusy, calls: int) -> bool:
        """Wait before asking the same model again; False, without waiting, if it names too long a
        wait."""
        if busy.retry_after_s is None:
            await self._sleep(self._rng.uniform(0, FIRST_WAIT_S * 2 ** (calls - 1)))
            return True
        if busy.retry_after_s > MAX_WAIT_S:
            return False
        # the jitter keeps threads from asking in the same instant
        await self._sleep(busy.retry_after_s + self._rng.uniform(0, FIRST_WAIT_S))
        return True

    def _sum_cost(self, prompt: Prompt, answer: Answer, calls: int) -> CallCost:
        texts = (prompt.system, *(part for part in prompt.user if isinstance(part, str)))
        return CallCost(
            calls,
            answer.input_tokens or sum(map(self._tokens, texts)),
            answer.output_tokens or self._tokens(answer.text),
            answer.cached_tokens,
        )


def schedule_tries(targets: Sequence[Target]) -> list[Target]:
    """List every model once, in order; the tries left go to the first models, up to their
    `max_retries`."""
    left = max(MAX_TRIES - len(targets), 0)
    order: list[Target] = []
    for target in targets:
        again = min(target.max_retries, left)
        left -= again
        order += [target] * (1 + again)
    return order
