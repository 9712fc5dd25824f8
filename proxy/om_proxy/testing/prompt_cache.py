"""A provider's prompt cache: how much of a prompt it has just seen, told by really comparing
prefixes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

CACHE_STEP_TOKENS = (
    128  # tokens; cached prefixes grow in such steps at the providers that publish theirs
)
MIN_CACHED_TOKENS = 1024  # tokens; shorter prefixes are not cached
MAX_REMEMBERED_PROMPTS = 16  # prompts remembered


class PromptCache:
    """Remembers the newest prompts of one caller and model, each for `lifetime` seconds since it
    was last of use."""

    def __init__(self, count: Callable[[str], int], lifetime: float) -> None:
        self._count = count
        self._lifetime = lifetime
        self._seen: deque[tuple[float, tuple[str, ...]]] = deque(maxlen=MAX_REMEMBERED_PROMPTS)

    def hit(self, prompt: Sequence[str], now: float) -> int:
        """Tokens of the prompt's longest remembered prefix; the prompt is remembered from now
        on."""
        fresh = [seen for at, seen in self._seen if now - at <= self._lifetime]
        tokens = max((self._shared(prompt, seen) for seen in fresh), default=0)
        self._seen.append((now, tuple(prompt)))
        return tokens // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS if tokens >= MIN_CACHED_TOKENS else 0

    def _shared(self, prompt: Sequence[str], seen: Sequence[str]) -> int:
        same = next(
            (i for i, pair in enumerate(zip(prompt, seen, strict=False)) if pair[0] != pair[1]),
            None,
        )
        if same is None:
            return sum(map(self._count, prompt[: min(len(prompt), len(seen))]))
        return sum(map(self._count, prompt[:same])) + self._count(
            common_start(prompt[same], seen[same])
        )


def common_start(one: str, other: str) -> str:
    low, high = 0, min(len(one), len(other))  # one[:low] == other[:low] always holds
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return one[:low]
