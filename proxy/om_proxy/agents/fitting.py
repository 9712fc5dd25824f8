"""A prompt as a model takes it: settings clamped to what is known of the model
(docs/spec/behaviour.md#models)."""

from __future__ import annotations

from dataclasses import dataclass

from om_proxy.agents.llm import Abilities, Image, ModelSettings, Prompt, Target


@dataclass(frozen=True, slots=True)
class Unknown:
    """The abilities of a model nobody knows."""

    max_output: int | None = None
    takes_images: bool | None = None
    takes_temperature: bool | None = None


def nothing_known(_model: str) -> Abilities:
    return Unknown()


def fitted(system: str, user: tuple[str | Image, ...], settings: ModelSettings, known: Abilities) -> Prompt:
    """Temperature is left out where it is refused, the output limit is at most the model's own."""
    limits = [limit for limit in (settings.max_output_tokens, known.max_output) if limit]
    return Prompt(
        system=system,
        user=user,
        temperature=None if known.takes_temperature is False else settings.temperature,
        max_output_tokens=min(limits) if settings.max_output_tokens else None,
    )


def shows_images(target: Target, known: Abilities) -> bool:
    """An unknown model asked directly is tried with images: the adapter leaves them out when it refuses them (direct.py)."""
    return target.via == "direct" if known.takes_images is None else known.takes_images
