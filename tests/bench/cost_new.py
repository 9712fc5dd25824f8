"""What a prompt holds that no cache can have: why a call that follows no break is served less than
others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from om_proxy.proof.billing import BilledTokens, SentPrompt
from tests.e2e.replay import Message

KINDS = {"tool": "tool results", "assistant": "last reply", "user": "the user"}


@dataclass(frozen=True, slots=True)
class New:
    """One call, as its provider counts tokens. `kinds`: of what is new, by who said it."""

    number: int
    prompt: int
    read: int
    kinds: Counter[str]

    @property
    def tokens(self) -> int:
        return sum(self.kinds.values())

    @property
    def share(self) -> float:
        """Of the prompt that was served."""
        return self.read / self.prompt

    @property
    def most(self) -> int:
        """Tokens that the best cache there could be would serve: all that is not new."""
        return self.prompt - self.tokens

    @property
    def mostly(self) -> str:
        """What most of the new tokens are."""
        (kind, _), *_ = self.kinds.most_common(1)
        return KINDS.get(kind, kind)


def new(
    prompts: Sequence[Sequence[Message]],
    calls: Sequence[SentPrompt],
    bills: Sequence[BilledTokens],
    chosen: Iterable[int],
) -> Iterator[New]:
    """`prompts` as they were sent, `calls` the same as they were counted: a segment for the tools,
    then one a message. `chosen`: calls whose prompt goes on from the one before."""
    for n in chosen:
        old = len(prompts[n - 1])
        kinds: Counter[str] = Counter()
        for message, (_, tokens) in zip(prompts[n][old:], calls[n].prompt[1 + old :], strict=True):
            kinds[message["role"]] += tokens
        yield New(n, calls[n].tokens, bills[n].read, kinds)
