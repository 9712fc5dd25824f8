"""Choose the models to ask, and their order, by the `model` setting
(docs/contributing/behaviour.md#models).

The first rule that fits holds:
- `inherit`: the request's own model, upstream and credential.
- `auto`: a small model on that upstream, which the caller names, then as `inherit`.
- `default`: a small model of Gemini, which the caller names.
- `openai/<name>`: straight over HTTP, to `api_base` or OpenAI itself.
- any name with an `api_base`: straight, unless its provider has an API of its own (Anthropic,
  Bedrock, …).
- all others: through litellm.

The first key found is used: the model's own, the configured one, the provider's variable in the
environment (credentials.py), and, on the very server that the request goes to, the request's
credential. A shared key is for the shared address: a model with its own address does not get it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from om_proxy.agents.model_access.credentials import (
    find_key,
    is_subscription_key,
    may_find_credential,
    reveal_secret,
)
from om_proxy.agents.model_access.llm import Target
from om_proxy.common.errors import ModelError
from om_proxy.common.providers import NATIVE_PROVIDERS, OPENAI_COMPATIBLE

# a name, a list of choices, {"up_to": {tokens: choice}}, or {"model": name} with max_retries,
# api_base, api_key
Choice: TypeAlias = str | Sequence[Any] | Mapping[Any, Any]

OPENAI_BASE_URL = "https://api.openai.com/v1"
# of one model; with the first try the three of docs/contributing/behaviour.md#failures
MAX_RETRIES = 2


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model as the settings name it, with its own settings."""

    name: str
    retries: int = MAX_RETRIES
    base: str | None = None
    key: str | None = field(default=None, repr=False)


def choose_targets(
    choice: Choice,
    *,
    inherited: Target | None,
    api_base: str | None,
    api_key: str | None,
    input_tokens: int,
    default_model: str,
    small_model: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Target, ...]:
    """Return the models to try, in order; never empty.

    `inherited` is None if no request's credential is at hand: `auto` and `inherit` are then skipped. Raises
    ModelError if nothing else is chosen. `input_tokens` choose the tier. `environ` holds providers'
    keys. `default_model` is what `default` means, and `small_model` the small model that `auto`
    asks on the request's own server, if there is one.
    """
    targets: list[Target] = []
    for model in list_models(choice, input_tokens):
        if model.name in ("auto", "inherit"):
            if inherited and small_model and model.name == "auto":
                targets.append(replace(inherited, model=small_model, is_guess=True))
            targets += [inherited] if inherited else []
        else:
            name = default_model if model.name == "default" else model.name
            named = _with_shared_server(replace(model, name=name), api_base, api_key)
            targets.append(_choose_target(named, inherited, environ or {}))
    targets = [target for target in targets if not is_subscription_key(target.api_key or "")]
    if not targets:
        raise ModelError(
            "no model to ask",
            "`auto` and `inherit` need a request's credential, which is gone; the next request brings it",
        )
    return tuple(targets)


def choose_model(choice: Choice, input_tokens: int) -> str:
    """Return the name that is tried first, as written; it may be `auto` or `inherit`."""
    return list_models(choice, input_tokens)[0].name


def finds_key(model: NamedModel, environ: Mapping[str, str]) -> bool:
    """Return whether a call of a named model is made with a key of the operator's: its own, or one
    that litellm or we find where the proxy runs."""
    target = _choose_target(model, None, environ)
    return bool(target.api_key) or (
        target.via == "litellm" and may_find_credential(target.model, environ)
    )


def is_above_largest_tier(choice: Choice, input_tokens: int) -> bool:
    """Return whether the input is beyond the largest tier. That tier is used, and the caller logs
    it."""
    tiers = _read_tiers(choice)
    return bool(tiers) and input_tokens > max(tiers)


def _with_shared_server(model: NamedModel, api_base: str | None, api_key: str | None) -> NamedModel:
    """Add the address and key that all models share, if the model has none of its own."""
    key = model.key or (api_key if model.base in (None, api_base) else None)
    return replace(model, base=model.base or api_base, key=key)


def list_models(choice: Choice, input_tokens: int | None = None) -> list[NamedModel]:
    """List the models of a choice: of its tier for so many tokens; None: of every tier."""
    if isinstance(choice, str):
        return [NamedModel(choice)]
    if isinstance(choice, Mapping):
        if tiers := _read_tiers(choice):
            if input_tokens is None:
                return [model for item in tiers.values() for model in list_models(item)]
            fitting = min((limit for limit in tiers if input_tokens <= limit), default=max(tiers))
            return list_models(tiers[fitting], input_tokens)
        retries = choice.get("max_retries")
        model = NamedModel(
            name=str(choice["model"]),
            retries=MAX_RETRIES if retries is None else int(retries),
            base=choice.get("api_base"),
            key=reveal_secret(choice.get("api_key")),
        )
        return [model]
    return [model for item in choice for model in list_models(item, input_tokens)]


def _read_tiers(choice: Choice) -> dict[int, Choice]:
    """Return the choices by their largest input (inclusive), or nothing for a choice without
    tiers."""
    if isinstance(choice, Mapping) and "up_to" in choice:
        return {int(limit): item for limit, item in choice["up_to"].items()}
    return {}


def _choose_target(
    model: NamedModel, inherited: Target | None, environ: Mapping[str, str]
) -> Target:
    name, base = model.name, model.base
    provider, _, rest = name.partition("/")
    if provider == "openai" and rest:
        return _build_direct_target(model, rest, base or OPENAI_BASE_URL, inherited, environ)
    if base and not (rest and provider in NATIVE_PROVIDERS):
        return _build_direct_target(
            model,
            rest if rest and provider in OPENAI_COMPATIBLE else name,
            base,
            inherited,
            environ,
        )
    return Target(name, "litellm", base, api_key=model.key, max_retries=model.retries)


def _build_direct_target(
    model: NamedModel, name: str, base: str, inherited: Target | None, environ: Mapping[str, str]
) -> Target:
    """Build a direct target. Without a key of its own, a model on the very server that the request
    goes to gets the request's credential."""
    key = model.key or find_key(model.name, base, environ)
    if not key and inherited is not None and inherited.base_url == base:
        return replace(inherited, model=name, max_retries=model.retries)
    return Target(name, "direct", base, api_key=key, max_retries=model.retries)
