"""Know providers' prompt caches: how long they keep a prompt's beginning, and which model reads it.

A cached prefix is the state that one model computed from it, so only that model can use it. No
provider serves it to another model, not even to a smaller sibling or a dated snapshot. The model's
name decides the upstream (`upstream.match`). So while the configuration stays the same, only
another name moves a conversation to another cache.
"""

from __future__ import annotations

import re

MINUTE, HOUR, DAY = 60, 3_600, 86_400

# Lifetimes in seconds by what a host or a provider's prefix contains; the first that fits.
_LIFETIMES_S = (
    ("google", DAY),
    ("gemini", DAY),
    ("vertex", DAY),
    ("deepseek", HOUR),
    ("groq", 2 * HOUR),
)
_SHORT_LIVED = re.compile(r"^gpt-(?:4.*|5(?:-.*)?|5\.[1-4](?:-.*)?)$")  # OpenAI's models before 5.5
DEFAULT_LIFETIME_S = 5 * MINUTE  # Anthropic's, and what is safe to assume of any other


def cache_lifetime(host: str, model: str) -> int:
    """Seconds a prompt prefix stays cached at the provider. `host` decides; for an unknown host the
    model's prefix does."""
    for hint in (host.lower(), model.lower().rpartition("/")[0]):
        if "openai" in hint:
            is_short = _SHORT_LIVED.match(model.lower().rpartition("/")[2])
            return 5 * MINUTE if is_short else HOUR
        for word, seconds in _LIFETIMES_S:
            if word in hint:
                return seconds
    return DEFAULT_LIFETIME_S


def has_moved(before: str | None, now: str | None) -> bool:
    """Return whether a conversation that `before` answered comes to a cache that never saw it. No,
    where a model is not named: it may be the same."""
    return before is not None and now is not None and before != now
