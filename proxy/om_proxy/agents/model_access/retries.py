"""Ask a list of models until one answers: three tries in all, or one for each model of a longer
list. A model is asked again after a random wait, or the wait that its server names. Each call that
its provider bills is noted, whatever becomes of the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import NamedTuple

from om_proxy.agents.model_access.llm import LLM, Answer, Prompt, Target
from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import BrokenAnswer, ModelBusy, ModelError, PromptTooLong
from om_proxy.memory.token_prices import Usage

MAX_TRIES = 3  # docs/contributing/behaviour.md#failures; in a longer list every model gets one
# the first wait is drawn from [0, FIRST_WAIT_S], each further one from twice that
FIRST_WAIT_S = 1.0
# a server that wants a longer wait is not asked again now: the thread backs off instead
MAX_WAIT_S = 30.0
# the server does not know the model, or not for this credential
UNKNOWN_MODEL_STATUSES = frozenset({400, 403, 404, 422})
# a guessed model that was refused is guessed again after this time
GUESS_AGAIN_AFTER_S = 3_600.0
MAX_REFUSED_GUESSES = 1_024
CHARS_PER_TOKEN = 4  # of a text that is not counted


class PaidCall(NamedTuple):
    """One call of one model."""

    model: str  # as it was asked for
    usage: Usage
    is_estimated: bool  # the server reported no usage


class CallBill:
    """The calls that one piece of memory work has paid for. A cut-off or unusable answer is paid
    for like any other. A request that a server refused is not."""

    def __init__(self) -> None:
        self.tries = 0  # refused ones included
        self.calls: list[PaidCall] = []

    @property
    def usage(self) -> Usage:
        return sum((call.usage for call in self.calls), Usage())

    def add_answer(
        self, target: Target, prompt: Prompt, answer: Answer, count_tokens: Callable[[str], int]
    ) -> None:
        """Note a call with an answer. Its tokens are counted if the server reports none."""
        told = answer.usage
        usage = Usage(
            told.input_tokens or sum(map(count_tokens, _list_texts(prompt))),
            told.cached_tokens,
            told.cache_write_tokens,
            told.output_tokens or count_tokens(answer.text),
        )
        is_estimated = not (told.input_tokens and told.output_tokens)
        self.calls.append(PaidCall(target.model, usage, is_estimated))

    def add_unanswered(self, target: Target, prompt: Prompt) -> None:
        """Note a call whose answer broke off, or was given up. Its prompt was read; how much the
        model wrote is not known."""
        chars = sum(map(len, _list_texts(prompt)))
        self.calls.append(PaidCall(target.model, Usage(chars // CHARS_PER_TOKEN), True))


def _list_texts(prompt: Prompt) -> list[str]:
    return [prompt.system, *(part for part in prompt.user if isinstance(part, str))]


class ModelCaller:
    """Asks a list of models. `tokens` counts tokens if a server reports none. `sleep` and `rng` make
    the waits, so that tests need not wait."""

    def __init__(
        self,
        llm: LLM,
        *,
        tokens: Callable[[str], int],
        sleep: Callable[[float], Awaitable[object]],
        rng: Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._llm = llm
        self._clock = clock
        # by server, model and credential: when the server refused the model
        self._refused_guesses: BoundedCache[tuple[object, ...], float] = BoundedCache(
            max_items=MAX_REFUSED_GUESSES
        )
        self._tokens = tokens
        self._sleep = sleep
        self._rng = rng

    async def ask(
        self,
        targets: Sequence[Target],
        write_prompt: Callable[[Target], Prompt],
        bill: CallBill | None = None,
    ) -> Answer:
        """Return the first answer. `bill` gets each call that is paid for, also if this raises.

        A busy model is asked again after a wait, as often as `schedule_tries` says. A model that
        fails otherwise is not asked again. Raises the last ModelError. Raises PromptTooLong or
        BrokenAnswer at once: the next model would get as long a prompt, and only a shorter one helps.
        """
        bill = bill or CallBill()
        remaining_tries = schedule_tries(self._leave_out_refused(targets))
        refused: list[Target] = []
        last_error: ModelError = ModelError("no model to ask")
        calls = 0
        while remaining_tries:
            target, *remaining_tries = remaining_tries
            calls += 1
            bill.tries += 1
            target_prompt = write_prompt(target)
            try:
                answer = await self._llm.complete(target, target_prompt)
            except (BrokenAnswer, asyncio.CancelledError):
                bill.add_unanswered(target, target_prompt)
                raise
            except PromptTooLong:
                raise
            except ModelError as exc:
                last_error = exc
                if target.is_guess and exc.server_status in UNKNOWN_MODEL_STATUSES:
                    refused.append(target)
                should_retry = (
                    isinstance(exc, ModelBusy)
                    and target in remaining_tries
                    and await self._wait_for_retry(exc, calls)
                )
                if not should_retry:
                    remaining_tries = [other for other in remaining_tries if other != target]
            else:
                bill.add_answer(target, target_prompt, answer, self._tokens)
                # another model took the prompt: the server refused the model, not the prompt
                for guess in refused:
                    self._refused_guesses.put(_identify_guess(guess), self._clock())
                return answer
        raise last_error

    def _leave_out_refused(self, targets: Sequence[Target]) -> Sequence[Target]:
        """Leave out guessed models that their server has refused lately, unless nothing else is
        left."""
        return [target for target in targets if not self._is_refused(target)] or targets

    def _is_refused(self, target: Target) -> bool:
        refused_at = self._refused_guesses.get(_identify_guess(target))
        return refused_at is not None and self._clock() < refused_at + GUESS_AGAIN_AFTER_S

    async def _wait_for_retry(self, busy: ModelBusy, calls: int) -> bool:
        """Wait before the same model is asked again. Return False at once if the server names too
        long a wait."""
        if busy.retry_after_s is None:
            await self._sleep(self._rng.uniform(0, FIRST_WAIT_S * 2 ** (calls - 1)))
            return True
        if busy.retry_after_s > MAX_WAIT_S:
            return False
        # the jitter keeps threads from asking in the same instant
        await self._sleep(busy.retry_after_s + self._rng.uniform(0, FIRST_WAIT_S))
        return True


def _identify_guess(target: Target) -> tuple[object, ...]:
    return target.base_url, target.model, target.api_key, target.headers


def schedule_tries(targets: Sequence[Target]) -> list[Target]:
    """List every model once, in order. The first models get the tries that are left, up to their
    `max_retries`."""
    retries_left = max(MAX_TRIES - len(targets), 0)
    tries: list[Target] = []
    for target in targets:
        retries = min(target.max_retries, retries_left)
        retries_left -= retries
        tries += [target] * (1 + retries)
    return tries
