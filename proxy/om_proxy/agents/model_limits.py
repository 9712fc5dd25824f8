"""Fit a prompt's settings to a model's abilities (docs/spec/behaviour.md#models)."""

from __future__ import annotations

from dataclasses import dataclass

from om_proxy.agents.llm import Abilities, Image, ModelSettings, Prompt, Target


@dataclass(frozen=True, slots=True)
class UnknownAbilities:
    """The abilities of an unknown model."""

    max_output: int | None = None
    takes_images: bool | None = None
    takes_temperature: bool | None = None


def unknown_abilities(_model: str) -> Abilities:
    return UnknownAbilities()


def clamp_prompt(
    system: str, user: tuple[str | Image, ...], settings: ModelSettings, abilities: Abilities
) -> Prompt:
    """Return the prompt without a temperature that the model refuses, and with an output limit that
    the model can reach."""
    limits = [limit for limit in (settings.max_output_tokens, abilities.max_output) if limit]
    return Prompt(
        system=system,
        user=user,
        temperature=None if abilities.takes_temperature is False else settings.temperature,
        max_output_tokens=min(limits) if settings.max_output_tokens else None,
    )


def can_show_images(target: Target, abilities: Abilities) -> bool:
    """Return whether to show images. An unknown model that is asked directly is tried with images:
    direct.py leaves them out after a refusal."""
    return target.via == "direct" if abilities.takes_images is None else abilities.takes_images
