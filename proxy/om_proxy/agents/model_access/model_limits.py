"""Fit a prompt's settings to a model's abilities (docs/contributing/behaviour.md#models)."""

from __future__ import annotations

from dataclasses import dataclass

from om_proxy.agents.model_access.llm import Abilities, Image, ModelSettings, Prompt, Target

# The least output limit of an unknown model. Servers add the limit to the prompt, and refuse what
# does not fit the model's window.
UNKNOWN_MODEL_OUTPUT_TOKENS = 8_192
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class UnknownAbilities:
    """The abilities of an unknown model."""

    max_output: int | None = None
    takes_images: bool | None = None
    takes_temperature: bool | None = None
    thinks: bool | None = None


def unknown_abilities(_model: str) -> Abilities:
    return UnknownAbilities()


def clamp_prompt(
    system: str, user: tuple[str | Image, ...], settings: ModelSettings, abilities: Abilities
) -> Prompt:
    """Return the prompt without a temperature that the model refuses, with little thinking, and with
    an output limit that the model can reach. The limit of an unknown model is the prompt's length: notes are shorter than
    what they are made from."""
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
