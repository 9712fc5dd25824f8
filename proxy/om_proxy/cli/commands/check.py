"""`om-proxy check`: show the settings in force for a model, and what needs attention."""

from __future__ import annotations

import argparse
import asyncio
import os

from msgspec import Struct

from om_proxy.app.store_opening import check_drivers, check_keys_are_apart
from om_proxy.cli.answers import print_json, print_report
from om_proxy.cli.doctor.models import describe_chosen_models
from om_proxy.cli.doctor.report import list_attention
from om_proxy.cli.exit_status import DONE
from om_proxy.common.errors import StorageError
from om_proxy.settings.config import (
    Settings,
    list_settings,
    load,
    render_settings,
    render_summary,
)
from om_proxy.storage.encryption.admission import load_master_keys
from om_proxy.storage.promises import (
    create_postgres_promise,
    create_redis_promise,
    create_sqlite_promise,
    list_promises,
)


def _render_promises(settings: Settings) -> list[str]:
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


class CheckReport(Struct, frozen=True):
    """The report that `--json` prints. It shows no secret: such a value is `(set)`."""

    file: str | None
    settings: list[dict[str, str]]  # name, value and origin of each
    warnings: list[str]


def run(options: argparse.Namespace) -> int:
    """Print a summary of the settings, with `--all` every setting too, and the warnings last."""
    settings = load(options.config)
    check_drivers(settings.storage)
    comparison_faults = compare_key_store(settings)
    model_and_resource = (options.model, options.resource)
    effective = settings.effective(*model_and_resource)
    lines = [
        *render_summary(settings, *model_and_resource),
        *describe_chosen_models(settings, effective, options.model),
        *_render_promises(settings),
        "the store is not opened, and no model server asked: om-proxy doctor does both",
    ]
    if options.all:
        lines += ["", *render_settings(settings, *model_and_resource)]
    else:
        lines += ["every setting and where it comes from: om-proxy check --all"]
    warnings = [
        *comparison_faults,
        *list_attention(settings, *model_and_resource, os.environ),
    ]
    if options.json:
        file = str(settings.file) if settings.file else None
        listed = [one._asdict() for one in list_settings(settings, *model_and_resource)]
        print_json(CheckReport(file, listed, warnings))
        return DONE
    warning_lines = [f"warning: {text}" for text in warnings]
    lines += ["", *(warning_lines or ["nothing needs attention"])]
    print_report(lines)
    return DONE
