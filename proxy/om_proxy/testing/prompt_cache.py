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
        self._prompts: deque[tuple[float, tuple[str, ...]]] = deque(maxlen=MAX_REMEMBERED_PROMPTS)

    def match_and_remember(self, prompt: Sequence[str], now: float) -> int:
        """Return the tokens of the prompt's longest remembered prefix, and remember the prompt."""
        earlier_prompts = [text for at, text in self._prompts if now - at <= self._lifetime_s]
        shared_tokens = max(
            (self._count_shared_tokens(prompt, earlier) for earlier in earlier_prompts), default=0
        )
        self._prompts.append((now, tuple(prompt)))
        if shared_tokens < MIN_CACHED_TOKENS:
            return 0
        return shared_tokens // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS

    def _count_shared_tokens(self, prompt: Sequence[str], earlier: Sequence[str]) -> int:
        for index, (text, earlier_text) in enumerate(zip(prompt, earlier, strict=False)):
            if text != earlier_text:
                prefix = find_common_prefix(text, earlier_text)
                return sum(map(self._count, prompt[:index])) + self._count(prefix)
        return sum(map(self._count, prompt[: len(earlier)]))


def find_common_prefix(one: str, other: str) -> str:
    low = 0  # one[:low] == other[:low] always holds
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return one[:low]
