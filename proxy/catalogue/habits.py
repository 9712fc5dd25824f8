"""What experience says of models: who observes badly, what costs too much, how long a provider's prompt cache lives."""

from __future__ import annotations

import re

from proxy.catalogue.models import limits, prices

DEAR = 2.5e-6  # dollars per input token: GPT-4o's, the model known to be too dear for this work
ROOM = 1.5  # a reflector's window against R: its prompt, the log beyond R, and an answer must fit as well

_OBSERVES_BADLY = re.compile(r"claude.*4[.-]5(?!\d)")  # the reference implementation's experience
MINUTE, HOUR, DAY = 60, 3_600, 86_400

# Prompt cache lifetimes in seconds by what a host or a provider's prefix contains; the first that fits.
_LIFETIMES = (
    ("google", DAY),
    ("gemini", DAY),
    ("vertex", DAY),
    ("deepseek", HOUR),
    ("groq", 2 * HOUR),
)
_SHORT_LIVED = re.compile(r"^gpt-(?:4.*|5(?:-.*)?|5\.[1-4](?:-.*)?)$")  # OpenAI's models before 5.5
UNKNOWN = 5 * MINUTE  # Anthropic's, and what is safe to assume of any other


def warnings(model: str, *, reflect_at: int | None = None) -> tuple[str, ...]:
    """What an operator should know before this model observes or, with `reflect_at` (R, in tokens), reflects."""
    found = []
    if _OBSERVES_BADLY.search(model.lower()):
        found.append(f"{model} is known to observe and reflect badly; `memory.model: default` is a tested choice")
    price = prices(model)
    if price and price.input >= DEAR:
        dollars = price.input * 1e6
        found.append(
            f"{model} is dear for background work (${dollars:g} per million input tokens); a small model does as well"
        )
    window = limits(model).max_input
    if reflect_at and window and window < reflect_at * ROOM:
        found.append(
            f"{model} takes {window} tokens, too few to reflect on {reflect_at}; lower reflection.observation_tokens, "
            "or choose a model with a larger window"
        )
    return tuple(found)


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
    return UNKNOWN


def _openai_lifetime(model: str, retention: str | None) -> int:
    if retention == "24h":
        return HOUR
    if retention == "in_memory" or _SHORT_LIVED.match(model):
        return 5 * MINUTE
    return HOUR
