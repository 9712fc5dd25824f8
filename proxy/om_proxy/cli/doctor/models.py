"""Warn of the configured models of memory: expensive or outdated ones, missing credentials, and what
the vectors of messages lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from om_proxy.agents.embedding import (
    COMPARING_MODULES,
    INSTALL_HINT,
    LOCAL_PREFIX,
    find_file_fault,
    list_missing_modules,
)
from om_proxy.agents.model_access.credentials import list_missing_variables, read_provider
from om_proxy.agents.model_access.retries import MAX_TRIES
from om_proxy.agents.model_access.targets import (
    OPENAI_BASE_URL,
    Choice,
    list_models,
)
from om_proxy.agents.models import (
    find_listed_name,
    find_similar_name,
    find_small_model,
    list_model_warnings,
    list_providers,
)
from om_proxy.common.providers import NATIVE_PROVIDERS, OPENAI_COMPATIBLE
from om_proxy.engine.policy import resolve_model
from om_proxy.settings.config import (
    REQUEST_MODELS,
    Effective,
    Settings,
    UpstreamSettings,
    find_model_origin,
    render_value,
)


def describe_chosen_models(
    settings: Settings, effective: Effective, actor: str | None
) -> list[str]:
    """Describe which models `auto` and `default` stand for, for this actor or on each upstream."""
    choices = (effective.observer_model, effective.reflector_model)
    names = {model.name for choice in choices for model in list_models(choice)}
    lines = []
    if effective.memory.enabled and "auto" in names:
        apis = settings.identity.apis
        found = [settings.upstream_for(actor, api) for api in apis] if actor else settings.upstream
        asked = {one.name: one for one in found if one and {*one.apis} & {*apis}}
        lines += [_describe_auto(upstream, actor) for upstream in asked.values()]
    if effective.memory.enabled and "default" in names:
        lines.append(f"default: {resolve_model('default', '', None)}")
    return [f"memory model {line}" for line in lines]


def _describe_auto(upstream: UpstreamSettings, actor: str | None) -> str:
    small = find_small_model(actor or "", upstream.base_url)
    model = small or actor or "the request's own"
    if small and actor is None:
        model = f"{small}, or the request's own where that costs no more"
    return f"auto: on {render_value(('name',), upstream.name)}, {model}"


def list_memory_model_warnings(
    settings: Settings, effective: Effective, actor: str | None
) -> list[str]:
    """List the warnings about the models that observe and reflect
    (docs/contributing/behaviour.md#models). `auto` and `inherit` need the actor's model."""
    upstream = settings.find_server(actor)
    base_url = upstream.base_url if upstream else None
    warnings = [*_list_name_faults(settings, effective)]
    warnings += [
        text
        for name, is_replaced in _list_names(effective.observer_model, actor, base_url)
        for text in list_model_warnings(name, is_replaced=is_replaced)
    ]
    for name, is_replaced in _list_names(effective.reflector_model, actor, base_url):
        warnings += list_model_warnings(
            name,
            reflect_from_tokens=effective.limits.reflect_from_tokens,
            is_replaced=is_replaced,
        )
    for choice in (effective.observer_model, effective.reflector_model):
        if any(model.retries >= MAX_TRIES for model in list_models(choice)):
            warnings.append(
                f"max_retries above {MAX_TRIES - 1} has no further effect: a call is tried at most {MAX_TRIES} times"
            )
    return list(dict.fromkeys(warnings))


def _list_name_faults(settings: Settings, effective: Effective) -> Iterator[str]:
    """Yield a warning for each model without an address whose provider is not known, or whose name
    may have a typo."""
    for agent in ("observation", "reflection"):
        choice = effective.observer_model if agent == "observation" else effective.reflector_model
        place = find_model_origin(settings, effective, agent)
        for model in list_models(choice):
            name = model.name
            is_named = name not in (*REQUEST_MODELS, "default") and not effective.memory.api_base
            if is_named and model.base is None and (fault := describe_name_fault(name)):
                yield f"{place}: memory model {render_value(('model',), name)} {fault}"


def describe_name_fault(model: str) -> str | None:
    """Say what is wrong with the name of a model that has no address; None if nothing is known to
    be."""
    provider = read_provider(model)
    known = list_providers()
    if not known or (provider is None and find_listed_name(model)):
        return None
    if provider is None:
        return "names no provider: write <provider>/<model>, or set memory.api_base for your own server"
    if provider not in known | NATIVE_PROVIDERS | OPENAI_COMPATIBLE:
        import difflib  # noqa: PLC0415 - 6 ms, needed for a fault only

        similar = difflib.get_close_matches(provider, known, n=1, cutoff=0.75)
        meant = f"did you mean {similar[0]}/{model.partition('/')[2]}?" if similar else ""
        remedy = meant or "a server of your own needs memory.api_base"
        return f"names no provider that is known; {remedy}"
    similar_name = find_similar_name(model)
    return f"is in no price list; did you mean {similar_name}?" if similar_name else None


def _list_names(
    choice: Choice, actor: str | None, base_url: str | None
) -> Iterator[tuple[str, bool]]:
    """Yield each model's name, and whether `auto` replaces the model once it has ended."""
    for name in (model.name for model in list_models(choice)):
        if resolved_name := resolve_model(name, actor or "", base_url):
            yield resolved_name, name == "auto" and resolved_name != actor


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
    choice: Choice, settings: Settings, effective: Effective, environ: Mapping[str, str]
) -> Iterator[str]:
    memory = effective.memory
    for listed in list_models(choice):
        name, base = listed.name, listed.base or memory.api_base
        shares_key = memory.api_key is not None and listed.base in (None, memory.api_base)
        if name in REQUEST_MODELS or listed.key or shares_key:
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


def list_vector_faults(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """Return a line for each fault, without a secret. Nothing is imported and no server is
    asked."""
    return list(dict.fromkeys(_list_faults(settings, environ)))


def _list_faults(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    if settings.may_embed and not settings.keeps_vectors:
        yield (
            "retrieval.vector has no effect: vectors belong to an index, and this store keeps none "
            "(Redis, storage.encryption_key or storage.search: false)"
        )
    for model in settings.embedding_models:
        shown = render_value(("model",), model)
        is_local = model.startswith(LOCAL_PREFIX)
        if (
            missing := list_missing_modules()
            if is_local
            else list_missing_modules(COMPARING_MODULES)
        ):
            yield f"retrieval.vector needs {', '.join(missing)}: {INSTALL_HINT}"
        if is_local:
            if fault := find_file_fault(model.removeprefix(LOCAL_PREFIX)):
                yield f"embedding model {shown}: {fault}"
        elif variables := list_missing_variables(model, None, environ):
            yield (
                f"embedding model {shown} finds no credential: set {' or '.join(variables)} "
                "where the proxy runs"
            )
