"""Show the settings in force (`om-proxy check`), and find what does not work (`om-proxy doctor`)."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from om_proxy.agents.model_access.targets import list_models
from om_proxy.agents.models import encodings
from om_proxy.agents.models.price_list import PRICE_TABLE_FILE, find_litellm_file
from om_proxy.app.store_opening import check_drivers, check_keys_are_apart
from om_proxy.cli.answers import escape_text, print_json, print_report, show_progress
from om_proxy.cli.doctor.call import build_inherited_target, try_observer, try_prompt
from om_proxy.cli.doctor.clients import examine_client
from om_proxy.cli.doctor.models import (
    describe_chosen_models,
    list_memory_model_warnings,
    list_missing_credentials,
    list_vector_faults,
)
from om_proxy.cli.doctor.store import examine_store
from om_proxy.cli.doctor.upstreams import Finding, examine_upstreams
from om_proxy.cli.exit_status import DONE, NOT_WORKING
from om_proxy.common.errors import StorageError
from om_proxy.engine.policy import list_open_keys
from om_proxy.memory.prompt.context import layout_for
from om_proxy.settings.config import (
    REQUEST_MODELS,
    Effective,
    Settings,
    list_address_warnings,
    list_settings,
    list_warnings,
    load,
    render_settings,
    render_summary,
    render_value,
)
from om_proxy.storage.encryption.admission import load_master_keys
from om_proxy.storage.promises import (
    create_postgres_promise,
    create_redis_promise,
    create_sqlite_promise,
    list_promises,
)

MAX_PRICE_TABLE_AGE_DAYS = 180
SECONDS_PER_DAY = 86_400
# some installers give every file one time from before the table was written
EARLIEST_PLAUSIBLE_S = 1_600_000_000.0  # September 2020


def run(options: argparse.Namespace) -> int:
    """Examine servers, credentials and threads, and print the findings. Return DONE if everything
    works, else NOT_WORKING."""
    settings = load(options.config)
    if options.client is not None:
        return print_findings(asyncio.run(examine_client(options.client, settings)), options)
    if settings.storage.file and not options.json:
        print(f"examining {Path(settings.storage.file).resolve()}", flush=True)
    with show_progress("asking the model servers, reading the store"):
        findings = asyncio.run(examine(settings, options))
    return print_findings(findings, options)


def print_findings(findings: list[Finding], options: argparse.Namespace) -> int:
    if options.json:
        print_json({"items": findings})
    else:
        print_report([escape_text(line) for line in render_findings(findings)])
    return DONE if all(finding.works for finding in findings) else NOT_WORKING


async def examine(settings: Settings, options: argparse.Namespace) -> list[Finding]:
    """Examine everything. A server may run at the same time: it sees every change."""
    model, resource = options.model, options.resource
    effective = settings.effective(model, resource)
    now = time.time()
    servers = await examine_upstreams(settings)
    return [
        *examine_configuration(settings, model, resource, servers),
        *servers,
        *examine_credentials(settings, effective),
        *(await try_calls(settings, effective, model) if options.call else ()),
        *await examine_store(settings, now, options),
        examine_ranks(model),
        examine_prices(now),
    ]


async def try_calls(settings: Settings, effective: Effective, model: str | None) -> list[Finding]:
    """Ask the observer model, and the clients' model if one is named."""
    found = await try_observer(settings, effective, model)
    target = build_inherited_target(settings, model)
    upstream = settings.find_server(model)
    if target is None or upstream is None:
        return found
    configured = effective.context.layout
    layout = layout_for(
        urlsplit(upstream.base_url).hostname or "",
        upstream.layout if configured == "auto" else configured,
    )
    return [*found, await try_prompt(upstream, target, layout)]


def list_attention(settings: Settings, model: str | None, resource: str | None) -> list[str]:
    """List what `om-proxy check` warns of, and `om-proxy doctor` too."""
    effective = settings.effective(model, resource)
    return [
        *list_open_keys(settings, os.environ),
        *list_missing_credentials(settings, effective, os.environ),
        *list_warnings(settings, model, resource),
        *list_memory_model_warnings(settings, effective, model),
        *list_vector_faults(settings, os.environ),
    ]


def examine_configuration(
    settings: Settings,
    model: str | None,
    resource: str | None,
    servers: Sequence[Finding],
) -> list[Finding]:
    """Examine which settings need attention, as `om-proxy check` warns of them. `servers`: the
    findings about the upstreams."""
    harmless: list[str] = []
    if settings.server.is_loopback:  # it may be meant so, by whoever is the machine's only user
        harmless += list_open_keys(settings, os.environ)
    if all(server.works for server in servers):  # the guess was wrong
        harmless += list_address_warnings(settings)
    warnings = list_attention(settings, model, resource)
    praise = f"configuration {settings.file or 'built-in defaults'}: nothing to warn of"
    return [Finding(text in harmless, text) for text in warnings] or [Finding(True, praise)]


def examine_credentials(settings: Settings, effective: Effective) -> list[Finding]:
    """Examine whether each memory model has its credential. That one is missing is a warning."""
    if not effective.memory.enabled:
        return [Finding(True, "memory is off: no memory model is called")]
    if list_missing_credentials(settings, effective, os.environ):
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


def render_findings(findings: Iterable[Finding]) -> list[str]:
    """Render the report's lines. What does not work comes first."""
    items = [(one.works, "  - " + one.text.replace("\n", "\n      ")) for one in findings]
    broken = [item for works, item in items if not works]
    working = [item for works, item in items if works]
    lines = ["", "needs attention:", *broken] if broken else ["", "nothing needs attention"]
    return [*lines, "", "works:", *working] if working else lines


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


def render_promises(settings: Settings) -> list[str]:
    """Render what the store of these settings promises. The store itself is not opened: that would
    bring its schema up to date."""
    storage = settings.storage
    if storage.is_postgres:  # without `durable`, the server's own settings decide
        promise = create_postgres_promise(commits_wait=storage.durable)
    elif storage.is_redis:
        promise = create_redis_promise("second" if storage.durable else "process")
    else:
        promise = create_sqlite_promise(is_in_memory=storage.file is None)
    masters = load_master_keys(storage.key_sources)
    promise = promise._replace(
        encrypted=masters is not None,
        separate_keys=storage.keys_url is not None,
        has_index=promise.has_index and masters is None and storage.search != "false",
    )
    said = "; ".join(list_promises(promise))
    lines = [f"the store promises: {said}"]
    if masters is not None:
        lines.append(f"master keys of the store, the newest first: {', '.join(masters.ids)}")
    return lines


def compare_key_store(settings: Settings) -> list[str]:
    """Return what keeps the key store from being compared with the data. Raise ConfigError if they
    are one file or one database."""
    try:
        asyncio.run(check_keys_are_apart(settings.storage))
    except StorageError as exc:
        return [
            f"storage.keys_url: whether it is the database of storage.url cannot be told: {exc}"
        ]
    return []


def check(options: argparse.Namespace) -> int:
    """Print a summary of the settings, with `--all` every setting too, and the warnings last."""
    settings = load(options.config)
    check_drivers(settings.storage)
    comparison_faults = compare_key_store(settings)
    model_and_resource = (options.model, options.resource)
    effective = settings.effective(*model_and_resource)
    lines = [
        *render_summary(settings, *model_and_resource),
        *describe_chosen_models(settings, effective, options.model),
        *render_promises(settings),
        "the store is not opened, and no model server asked: om-proxy doctor does both",
    ]
    if options.all:
        lines += ["", *render_settings(settings, *model_and_resource)]
    else:
        lines += ["every setting and where it comes from: om-proxy check --all"]
    warnings = [
        *comparison_faults,
        *list_attention(settings, *model_and_resource),
    ]
    if options.json:
        file = str(settings.file) if settings.file else None
        listed = [one._asdict() for one in list_settings(settings, *model_and_resource)]
        # no secret is shown: such a value is `(set)`
        print_json({"file": file, "settings": listed, "warnings": warnings})
        return DONE
    warning_lines = [f"warning: {text}" for text in warnings]
    lines += ["", *(warning_lines or ["nothing needs attention"])]
    print_report(lines)
    return DONE
