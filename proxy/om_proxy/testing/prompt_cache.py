"""Imitate a provider's prompt cache: compare a prompt with the newest ones, and count the tokens of
the common prefix."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

# cached prefixes grow in such steps, at the providers that publish theirs
CACHE_STEP_TOKENS = 128
MIN_CACHED_TOKENS = 1024  # shorter prefixes are not cached
MAX_REMEMBERED_PROMPTS = 16


class PromptCache:
    """The newest prompts of one client and model. Each is forgotten `lifetime_s` seconds after its
    last use."""

    def __init__(self, count: Callable[[str], int], lifetime_s: float) -> None:
        self._count = count
        self._lifetime_s = lifetime_s
        self._seen: deque[tuple[float, tuple[str, ...]]] = deque(maxlen=MAX_REMEMBERED_PROMPTS)

    def match_and_remember(self, prompt: Sequence[str], now: float) -> int:
        """Return the tokens of the prompt's longest remembered prefix, and remember the prompt."""
        fresh = [seen for at, seen in self._seen if now - at <= self._lifetime_s]
        tokens = max((self._count_shared_tokens(prompt, seen) for seen in fresh), default=0)
        self._seen.append((now, tuple(prompt)))
        return tokens // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS if tokens >= MIN_CACHED_TOKENS else 0

    def _count_shared_tokens(self, prompt: Sequence[str], seen: Sequence[str]) -> int:
        same = next(
            (i for i, pair in enumerate(zip(prompt, seen, strict=False)) if pair[0] != pair[1]),
            None,
        )
        if same is None:
            return sum(map(self._count, prompt[: min(len(prompt), len(seen))]))
        return sum(map(self._count, prompt[:same])) + self._count(
            common_prefix(prompt[same], seen[same])
        )


def common_prefix(one: str, other: str) -> str:
    low, high = 0, min(len(one), len(other))  # one[:low] == other[:low] always holds
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return one[:low]
