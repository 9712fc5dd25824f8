"""Say what is missing for the vectors of messages: packages, files, a model, a credential."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from om_proxy.agents.embedding import LOCAL_PREFIX
from om_proxy.agents.local_embedding import (
    COMPARING_MODULES,
    INSTALL_HINT,
    find_file_fault,
    list_missing_modules,
)
from om_proxy.agents.model_access.credentials import list_missing_variables
from om_proxy.settings.config import Settings, render_value


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
