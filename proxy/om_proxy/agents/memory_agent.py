"""The base of observer and reflector, and a prompt's settings as a model takes them
(docs/contributing/behaviour.md#models)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random, SystemRandom

from om_proxy.agents.model_access.llm import LLM, Abilities, Image, ModelSettings, Prompt, Target
from om_proxy.agents.model_access.retries import ModelCaller

# The least output limit of an unknown model. Servers add the limit to the prompt, and refuse what
# does not fit the model's window.
UNKNOWN_MODEL_OUTPUT_TOKENS = 8_192
CHARS_PER_TOKEN = 4


class MemoryAgent:
    """The part of an agent that asks models, counts tokens and knows a model's abilities.

    `tokens` counts the tokens of a text. It runs in a thread: its first call loads ranks, and long
    texts take time."""

    def __init__(
        self,
        llm: LLM,
        *,
        tokens: Callable[[str], int],
        abilities: Callable[[str], Abilities],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: Random = SystemRandom(),  # noqa: B008 - stateless
    ) -> None:
        self._tokens = tokens
        self._caller = ModelCaller(llm, tokens=tokens, sleep=sleep, rng=rng)
        self._abilities = abilities


def clamp_prompt(
    system: str, user: tuple[str | Image, ...], settings: ModelSettings, abilities: Abilities
) -> Prompt:
    """Return the prompt without a temperature that the model refuses, with little thinking, and with
    an output limit that the model can reach. The limit of an unknown model is the prompt's length:
    notes are shorter than what they are made from."""
    limit = settings.max_output_tokens
    if limit:
        chars = sum(len(part) for part in user if isinstance(part, str))
        reachable = max(UNKNOWN_MODEL_OUTPUT_TOKENS, chars // CHARS_PER_TOKEN)
        limit = min(limit, abilities.max_output or reachable)
    return Prompt(
        system=system,
        user=user,
        temperature=None if abilities.takes_temperature is False else settings.temperature,
        max_output_tokens=limit,
        reasoning_effort=_choose_effort(settings.reasoning_effort, abilities),
        extra_body=settings.extra_body,
    )


def _choose_effort(effort: str | None, abilities: Abilities) -> str | None:
    """Return the effort to ask for. `auto`: low, where the model is known to think."""
    if effort == "auto":
        return "low" if abilities.thinks else None
    return effort


def can_show_images(target: Target, abilities: Abilities) -> bool:
    """Return whether to show images. An unknown model that is asked directly is tried with images:
    direct.py leaves them out after a refusal."""
    return target.via == "direct" if abilities.takes_images is None else abilities.takes_images
