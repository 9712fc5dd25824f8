"""Find the keys of the operator's that memory spends, and warn of keys that others may spend.

A memory model or an embedding model that is named spends its own `api_key`, `memory.api_key`, or the
provider's variable where the proxy runs. `auto` and `inherit` spend what the request brings, or the
model server's `api_key`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from om_proxy.agents.embedding import LOCAL_PREFIX
from om_proxy.agents.model_access.credentials import list_models, may_find_credential
from om_proxy.agents.model_access.targets import NamedModel, finds_key
from om_proxy.agents.models import choose_default_model
from om_proxy.settings.config import REQUEST_MODELS, Effective, Settings, render_value


def list_paid_models(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the memory models and the embedding models that spend a key of the operator's, for any
    model or resource. `environ` may hold the keys of providers."""
    levels = settings.list_effective()
    if not any(level.memory.enabled for level in levels):
        return ()
    return tuple(
        dict.fromkeys(
            [*_list_paid_memory_models(levels, environ)]
            + [
                model
                for model in settings.embedding_models
                if not model.startswith(LOCAL_PREFIX) and may_find_credential(model, environ)
            ]
        )
    )


def _list_paid_memory_models(
    levels: Sequence[Effective], environ: Mapping[str, str]
) -> Iterator[str]:
    # an override may give the key, and another one the model
    has_shared_key = any(level.memory.api_key for level in levels)
    for level in levels:
        shared_base = level.memory.api_base
        for choice in (level.observer_model, level.reflector_model):
            for model in list_models(choice):
                if model.name in REQUEST_MODELS:
                    continue
                shares_key = has_shared_key and model.base in (None, shared_base)
                name = choose_default_model() if model.name == "default" else model.name
                named = NamedModel(name, base=model.base or shared_base)
                if model.has_key or shares_key or finds_key(named, environ):
                    yield model.name


def list_open_keys(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """List a warning for each key of the operator's that anybody may spend who reaches the server.
    On loopback these are the programs of the machine, which may be what its only user wants."""
    if settings.auth.keys:
        return []
    upstreams = [one.name for one in settings.upstream if one.api_key is not None]
    owners = [f"upstream {render_value(('name',), name)}" for name in upstreams]
    owners += [
        f"memory model {render_value(('model',), name)}"
        for name in list_paid_models(settings, environ)
    ]
    return [_describe_open_key(owner, settings) for owner in owners]


def _describe_open_key(owner: str, settings: Settings) -> str:
    if settings.server.is_loopback:
        return (
            f"{owner} has an api_key, and auth.keys is not set: every program of this "
            "machine, of any of its users, can spend that key; set auth.keys to say who may"
        )
    return (
        f"ANYBODY WHO REACHES {settings.server.host} CAN SPEND the api_key of {owner}: "
        "auth.keys is not set, so any made-up key is accepted; set auth.keys, and give each client "
        "one of them"
    )
