"""What is known of providers' prompt caches: how long a prompt's beginning is kept, and who can read it.

A kept prefix is the state one model computed from it, so it is of use to that model alone: no provider serves it to another one, not
even to a smaller sibling or a dated snapshot. Which upstream serves a model is a function of its name (`upstream.match`), so another
name is all that can move a conversation to another cache while the configuration stands.
"""

from __future__ import annotations

import re

MINUTE, HOUR, DAY = 60, 3_600, 86_400

# Lifetimes in seconds by what a host or a provider's prefix contains; the first that fits.
_LIFETIMES = (
    ("google", DAY),
    ("gemini", DAY),
    ("vertex", DAY),
    ("deepseek", HOUR),
    ("groq", 2 * HOUR),
)
_SHORT_LIVED = re.compile(r"^gpt-(?:4.*|5(?:-.*)?|5\.[1-4](?:-.*)?)$")  # OpenAI's models before 5.5
DEFAULT_LIFETIME_S = 5 * MINUTE  # Anthropic's, and what is safe to assume of any other


def cache_lifetime(host: str, model: str, retention: str | None = None) -> int:
    """Seconds a prompt prefix stays cached at the provider. `host` decides, an unknown one leaves it to the model's prefix.

    `retention` is the request's `prompt_cache_retention`, where it has one (OpenAI).
    """
    for hint in (host.lower(), model.lower().rpartition("/")[0]):
        if "openai" in hint:
            return _openai_lifetime(model.lower().rpartition("/")[2], retention)
        for word, seconds in _LIFETIMES:
            if word in hint:
                return seconds
    return DEFAULT_LIFETIME_S


def _openai_lifetime(model: str, retention: str | None) -> int:
    if retention == "24h":
        return HOUR
    if retention == "in_memory" or _SHORT_LIVED.match(model):
        return 5 * MINUTE
    return HOUR


def moved(before: str | None, now: str | None) -> bool:
    """Whether a conversation that `before` answered comes to a cache that never saw it. A model nobody names may be any: no."""
    return before is not None and now is not None and before != now
