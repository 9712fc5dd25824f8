"""Warn of the configured memory models: expensive or outdated models, and missing credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from om_proxy.agents.credentials import list_missing_variables, list_models
from om_proxy.agents.retries import MAX_TRIES
from om_proxy.agents.targets import OPENAI_BASE_URL
from om_proxy.models import choose_default_model, list_model_warnings
from om_proxy.settings import Effective, Settings, render_value


def list_memory_model_warnings(effective: Effective, actor: str | None) -> list[str]:
    """List the warnings about the models that observe and reflect (docs/spec/behaviour.md#models).
    `inherit` means the actor's model, if it is given."""
    warnings = [
        text
        for name in _list_names(effective.observer_model, actor)
        for text in list_model_warnings(name)
    ]
    for name in _list_names(effective.reflector_model, actor):
        warnings += list_model_warnings(
            name, reflect_from_tokens=effective.limits.reflect_from_tokens
        )
    for choice in (effective.observer_model, effective.reflector_model):
        if any((model.max_retries or 0) >= MAX_TRIES for model in list_models(choice)):
            warnings.append(
                f"max_retries above {MAX_TRIES - 1} has no further effect: a call is tried at most {MAX_TRIES} times"
            )
    return list(dict.fromkeys(warnings))


def _list_names(choice: object, actor: str | None) -> Iterator[str]:
    for name in (model.name for model in list_models(choice)):
        resolved_name = {"inherit": actor, "default": choose_default_model()}.get(name, name)
        if resolved_name is not None:
            yield resolved_name


def list_missing_credentials(
    settings: Settings, effective: Effective, environ: Mapping[str, str]
) -> list[str]:
    """Return a line for each memory model without a key. The line names the variable to set, and
    no value."""
    if not effective.memory.enabled:
        return []
    choices = {"observer": effective.observer_model, "reflector": effective.reflector_model}
    agents_by_text: dict[str, list[str]] = {}
    for agent, choice in choices.items():
        for text in _describe_missing(choice, settings, effective, environ):
            agents_by_text.setdefault(text, []).append(agent)
    return [
        f"{' and '.join(dict.fromkeys(agents))} {text}" for text, agents in agents_by_text.items()
    ]


def _describe_missing(
    choice: object, settings: Settings, effective: Effective, environ: Mapping[str, str]
) -> Iterator[str]:
    memory = effective.memory
    for name, own_base, has_key, _ in list_models(choice):
        base = own_base or memory.api_base
        shares_key = memory.api_key is not None and own_base in (None, memory.api_base)
        if name == "inherit" or has_key or shares_key:
            continue
        variables = list_missing_variables(name, base, environ)
        if not variables:
            continue
        remedy = f"set {' or '.join(variables)} where the proxy runs, or memory.api_key"
        model = render_value(("model",), name)
        yield f"{model} finds no credential: {remedy}{_describe_fallback(name, base, settings)}"


def _describe_fallback(name: str, base: str | None, settings: Settings) -> str:
    """Describe the credential that is used until the variable is set. A model on the server that
    requests go to is called with a request's credential, while the proxy has one."""
    address = base or (OPENAI_BASE_URL if name.startswith("openai/") else None)
    if address in {upstream.base_url for upstream in settings.upstream}:
        return "; until then it is called with the credential of the request, and after a restart only from the next request on"
    return ""
