"""Note each call of a memory model that its provider bills, whatever becomes of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from om_proxy.agents.model_access.llm import Answer, Prompt, Target
from om_proxy.memory.token_prices import Usage

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
        usage = Usage(
            answer.input_tokens or sum(map(count_tokens, _list_texts(prompt))),
            answer.cached_tokens,
            answer.cache_write_tokens,
            answer.output_tokens or count_tokens(answer.text),
        )
        is_estimated = not (answer.input_tokens and answer.output_tokens)
        self.calls.append(PaidCall(target.model, usage, is_estimated))

    def add_unanswered(self, target: Target, prompt: Prompt) -> None:
        """Note a call whose answer broke off, or was given up. Its prompt was read; how much the
        model wrote is not known."""
        chars = sum(map(len, _list_texts(prompt)))
        self.calls.append(PaidCall(target.model, Usage(chars // CHARS_PER_TOKEN), True))


def _list_texts(prompt: Prompt) -> list[str]:
    return [prompt.system, *(part for part in prompt.user if isinstance(part, str))]
