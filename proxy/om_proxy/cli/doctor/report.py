"""Write the report of `om-proxy doctor`: what needs attention first, then what works."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from om_proxy.agents.model_access.credentials import list_models
from om_proxy.agents.models import encodings
from om_proxy.agents.models.price_list import PRICE_TABLE_FILE, find_litellm_file
from om_proxy.app.store_opening import check_drivers, open_store
from om_proxy.cli.doctor.call import build_inherited_target, try_observer
from om_proxy.cli.doctor.models import (
    list_memory_model_warnings,
    list_missing_credentials,
    list_vector_faults,
)
from om_proxy.cli.doctor.prompt_call import try_prompt
from om_proxy.cli.doctor.storage import examine_storage
from om_proxy.cli.doctor.threads import FailingThread, examine_due_work, find_failing_threads
from om_proxy.cli.doctor.upstreams import Finding, examine_upstreams, examine_webhooks
from om_proxy.common.errors import ConfigError, StorageError
from om_proxy.engine.policy import list_open_keys
from om_proxy.memory.prompt.layout import layout_for
from om_proxy.settings.config import (
    REQUEST_MODELS,
    Effective,
    Settings,
    StorageSettings,
    list_address_warnings,
    list_warnings,
    render_value,
)
from om_proxy.storage.encryption.admission import load_master_keys


async def examine(
    settings: Settings,
    *,
    model: str | None,
    call: bool,
    revive: bool,
    environ: Mapping[str, str],
    tenant: str | None = None,
    resource: str | None = None,
) -> list[Finding]:
    """Examine everything. A server may run at the same time: it sees every change. `tenant`,
    `resource`: only their threads are examined."""
    effective = settings.effective(model, resource)
    now = time.time()
    servers = await examine_upstreams(settings)
    return [
        *examine_configuration(settings, model, resource, environ, servers),
        *servers,
        *examine_credentials(settings, effective, environ),
        *(await try_calls(settings, effective, model, environ) if call else ()),
        *await examine_store(settings, now, revive=revive, tenant=tenant, resource=resource),
        examine_ranks(model),
        examine_prices(now),
    ]


async def try_calls(
    settings: Settings, effective: Effective, model: str | None, environ: Mapping[str, str]
) -> list[Finding]:
    """Ask the observer model, and the clients' model if one is named."""
    found = await try_observer(settings, effective, model, environ)
    target = build_inherited_target(settings, model, environ)
    upstream = settings.find_server(model)
    if target is None or upstream is None:
        return found
    configured = effective.context.layout
    layout = layout_for(
        urlsplit(upstream.base_url).hostname or "",
        upstream.layout if configured == "auto" else configured,
    )
    return [*found, await try_prompt(upstream, target, layout)]


def list_attention(
    settings: Settings, model: str | None, resource: str | None, environ: Mapping[str, str]
) -> list[str]:
    """List what `om-proxy check` warns of, and `om-proxy doctor` too."""
    effective = settings.effective(model, resource)
    return [
        *list_open_keys(settings, environ),
        *list_missing_credentials(settings, effective, environ),
        *list_warnings(settings, model, resource),
        *list_memory_model_warnings(settings, effective, model),
        *list_vector_faults(settings, environ),
    ]


def examine_configuration(
    settings: Settings,
    model: str | None,
    resource: str | None,
    environ: Mapping[str, str],
    servers: Sequence[Finding],
) -> list[Finding]:
    """Examine which settings need attention, as `om-proxy check` warns of them. `servers`: the
    findings about the upstreams."""
    harmless: list[str] = []
    if settings.server.is_loopback:  # it may be meant so, by whoever is the machine's only user
        harmless += list_open_keys(settings, environ)
    if all(server.works for server in servers):  # the guess was wrong
        harmless += list_address_warnings(settings)
    warnings = list_attention(settings, model, resource, environ)
    praise = f"configuration {settings.file or 'built-in defaults'}: nothing to warn of"
    return [Finding(text in harmless, text) for text in warnings] or [Finding(True, praise)]


def examine_credentials(
    settings: Settings, effective: Effective, environ: Mapping[str, str]
) -> list[Finding]:
    """Examine whether each memory model has its credential. That one is missing is a warning."""
    if not effective.memory.enabled:
        return [Finding(True, "memory is off: no memory model is called")]
    if list_missing_credentials(settings, effective, environ):
        return []
    choices = (effective.observer_model, effective.reflector_model)
    names = dict.fromkeys(model.name for choice in choices for model in list_models(choice))
    if names.keys() <= set(REQUEST_MODELS):
        size = "a small one" if "auto" in names else "the request's own"
        return [Finding(True, f"memory model: {size}, with the request's credential")]
    return [
        Finding(
            True,
            f"memory model {render_value(('model',), ', '.join(names))}: no credential is missing",
        )
    ]


async def examine_store(
    settings: Settings,
    now: float,
    *,
    revive: bool,
    tenant: str | None = None,
    resource: str | None = None,
) -> list[Finding]:
    """Examine the store and its threads."""
    try:
        if settings.storage.file and not os.access(settings.storage.file, os.F_OK):
            return [await asyncio.to_thread(examine_first_start, settings.storage)]
        file = find_database(settings)
        store = await open_store(settings.storage, create=False)
    except (ConfigError, StorageError) as exc:  # the report goes on
        return [Finding(False, str(exc))]
    try:
        failing = await find_failing_threads(store, revive=revive, tenant=tenant, resource=resource)
        return [
            *await examine_storage(
                store,
                file or settings.storage.shown_url,
                now,
                search=settings.storage.search,
            ),
            *describe_failing(failing),
            *(
                await examine_due_work(store, await store.clock())
                if settings.background.external
                else ()
            ),
            *await examine_webhooks(store, settings),
        ]
    finally:
        await store.close()


def examine_first_start(storage: StorageSettings) -> Finding:
    """Examine whether a server can make the database. Raise ConfigError for what else it lacks."""
    check_drivers(storage)
    load_master_keys(storage.key_sources)
    file = Path(storage.file or "").resolve()
    folder = next(one for one in file.parents if os.access(one, os.F_OK))
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return Finding(
            False,
            f"storage.url names {file}, which cannot be made: {folder} is no folder where this "
            "process may write",
        )
    return Finding(
        True,
        f"storage {file} is made at the first start; if a server has run already, it uses another "
        "folder or configuration than this command",
    )


def describe_failing(failing: Sequence[FailingThread]) -> list[Finding]:
    """Describe the threads whose memory work fails. A revived thread needs no attention any
    more."""
    findings = [Finding(thread.is_revived, thread.line) for thread in failing]
    parked_count = sum(thread.info.parked and not thread.is_revived for thread in failing)
    if parked_count:
        advice = "remove the cause, then run om-proxy doctor --revive"
        findings.append(Finding(False, f"{parked_count} parked: {advice}"))
    return findings or [Finding(True, "no thread has failing memory work")]


def render_findings(findings: Iterable[Finding]) -> list[str]:
    """Render the report's lines. What does not work comes first."""
    broken = [_render_item(finding.text) for finding in findings if not finding.works]
    working = [_render_item(finding.text) for finding in findings if finding.works]
    lines = ["", "needs attention:", *broken] if broken else ["", "nothing needs attention"]
    return [*lines, "", "works:", *working] if working else lines


def _render_item(text: str) -> str:
    return "  - " + text.replace("\n", "\n      ")


def find_database(settings: Settings) -> Path | None:
    """Find the file that storage.url names; None: it names a server.

    Raises ConfigError if the file does not exist: opening the store would create an empty file,
    in which nothing fails."""
    if settings.storage.is_server:
        return None
    if settings.storage.file is None:
        raise ConfigError(
            "storage.url names no file, but a store in the server's own memory: this command cannot reach it"
        )
    file = Path(settings.storage.file).resolve()
    where = settings.origin(("storage", "url")) or "the default"
    if file.exists() and not file.is_file():
        raise ConfigError(
            f"storage.url ({where}) names {file}, which is no file: name the database in it"
        )
    if not file.exists():
        raise ConfigError(
            f"storage.url ({where}) names {file}, which does not exist: either no server has run yet, or the server uses "
            "another folder or configuration than this command"
        )
    return file


MAX_PRICE_TABLE_AGE_DAYS = 180
SECONDS_PER_DAY = 86_400
# some installers give every file one time from before the table was written
EARLIEST_PLAUSIBLE_S = 1_600_000_000.0  # September 2020


def examine_ranks(model: str | None) -> Finding:
    """Examine whether tokens of this model are counted or estimated. Nothing is downloaded."""
    name = encodings.find_encoding_name(model or "")
    if name == encodings.ESTIMATE_NAME:
        return Finding(
            False,
            "token ranks are not on this machine, so tokens are estimated: install litellm again, "
            "or set TIKTOKEN_CACHE_DIR to a folder that has them",
        )
    return Finding(True, f"token ranks {name} are on this machine")


def examine_prices(now: float) -> Finding:
    """Examine how old the price table is. It is at least as old as its installation."""
    file = find_litellm_file(PRICE_TABLE_FILE)
    if file is None:
        return Finding(
            False, "the price table is missing, so no price is known: install litellm again"
        )
    installed_at = file.stat().st_mtime
    if installed_at < EARLIEST_PLAUSIBLE_S:
        return Finding(True, "the price table is there; its age is not known")
    age_days = int((now - installed_at) / SECONDS_PER_DAY)
    if age_days > MAX_PRICE_TABLE_AGE_DAYS:
        return Finding(
            False,
            f"the price table was installed {age_days} days ago, so prices and new models may be "
            "missing: update litellm",
        )
    return Finding(True, f"the price table was installed {max(age_days, 0)} days ago")
