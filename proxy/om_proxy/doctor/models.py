"""What is known against the configured memory models: of their abilities, and of their
credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from om_proxy.agents.credentials import list_missing_variables, list_models
from om_proxy.agents.retries import MAX_TRIES
from om_proxy.agents.targets import OPENAI_BASE_URL
from om_proxy.models import list_model_warnings
from om_proxy.settings import Effective, Settings, render_value


def model_warnings(effective: Effective, actor: str | None) -> list[str]:
    """What is known against the models that observe and reflect (docs/spec/behaviour.md#models);
    `inherit` stands for the actor's, where one is named."""
    found = [
        text
        for name in _names(effective.observer_model, actor)
        for text in list_model_warnings(name)
    ]
    for name in _names(effective.reflector_model, actor):
        found += list_model_warnings(name, reflect_at=effective.limits.reflect_at)
    for choice in (effective.observer_model, effective.reflector_model):
        if any((model.max_retries or 0) >= MAX_TRIES for model in list_models(choice)):
            found.append(
                f"max_retries above {MAX_TRIES - 1} does nothing more: a call is tried at most {MAX_TRIES} times in all"
            )
    return list(dict.fromkeys(found))


def _names(choice: object, actor: str | None) -> Iterator[str]:
    for name in (model.name for model in list_models(choice)):
        named = actor if name == "inherit" else name
        if named is not None and named != "default":
            yield named


def missing_credentials(
    settings: Settings, effective: Effective, environ: Mapping[str, str]
) -> list[str]:
    """One line for each memory model that finds no key: which variable would hold it. Never a
    value."""
    if not effective.memory.enabled:
        return []
    choices = {"observer": effective.observer_model, "reflector": effective.reflector_model}
    missed: dict[str, list[str]] = {}
    for agent, choice in choices.items():
        for text in _missing(choice, settings, effective, environ):
            missed.setdefault(text, []).append(agent)
    return [f"{' and '.join(dict.fromkeys(agents))} {text}" for text, agents in missed.items()]


def _missing(
    choice: object, settings: Settings, effective: Effective, environ: Mapping[str, str]
) -> Iterator[str]:
    memory = effective.memory
    for name, own_base, has_key, _ in list_models(choice):
        base = own_base or memory.api_base
        shares_key = memory.api_key is not None and own_base in (None, memory.api_base)
        variables = list_missing_variables(name, base, environ)
        if name == "inherit" or has_key or shares_key or not variables:
            continue
        remedy = f"set {' or '.join(variables)} where the proxy runs, or memory.api_key"
        yield f"{render_value(('model',), name)} finds no credential: {remedy}{_until_then(name, base, settings)}"


def _until_then(name: str, base: str | None, settings: Settings) -> str:
    """A model of the very server that requests go to is asked with their credential, as long as one
    is at hand."""
    address = base or (OPENAI_BASE_URL if name.startswith("openai/") else None)
    if address in {upstream.base_url for upstream in settings.upstream}:
        return "; until then it is asked with the credential of the request, and after a restart not before the next one"
    return ""
