"""Show the settings in force, write an annotated configuration file, and sign tokens with its secret."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from om_proxy.app.store_opening import check_drivers, check_keys_are_apart
from om_proxy.cli.answers import print_json, print_report
from om_proxy.cli.commands.doctor import list_attention
from om_proxy.cli.doctor.models import describe_chosen_models
from om_proxy.cli.exit_status import DONE
from om_proxy.common.errors import ConfigError, StorageError, UsageError
from om_proxy.settings.config import Settings, list_settings, load, render_settings, render_summary
from om_proxy.settings.config.annotations import DISTRIBUTION_NAME, FILE_NAME, find_annotated_file
from om_proxy.settings.config.sections.quantities import parse_duration
from om_proxy.settings.identity.naming import is_valid_name
from om_proxy.settings.identity.user_token import Claims, sign_claims
from om_proxy.storage.encryption.admission import load_master_keys
from om_proxy.storage.promises import (
    create_postgres_promise,
    create_redis_promise,
    create_sqlite_promise,
    list_promises,
)


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


def init(options: argparse.Namespace) -> int:
    """Write the file. Never overwrite a file, which somebody may have edited."""
    annotated_file = find_annotated_file()
    if annotated_file is None:
        raise ConfigError(f"this installation lacks {FILE_NAME}: install {DISTRIBUTION_NAME} again")
    text = annotated_file.read_text(encoding="utf-8")
    path = Path(options.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as exc:
        raise UsageError(f"{path} exists already: edit it, or name another path") from exc
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be written ({exc.strerror}): name a path where you may write"
        ) from exc
    print(
        f"wrote {path}; every setting in it has its default. "
        f"Edit it, then: om-proxy check --config {path}"
    )
    return DONE


def print_token(options: argparse.Namespace) -> int:
    """Print a token that is signed with `auth.token_secret`."""
    auth = load(options.config).auth
    if auth.token_secret is None:
        raise ConfigError(
            "auth.token_secret is not set: set it to the output of `openssl rand -hex 32`"
        )
    names = [name for name in (options.resource, options.thread) if name is not None]
    if not all(map(is_valid_name, names)):
        raise UsageError(
            "--resource and --thread must be 1 to 256 bytes of printable text, "
            "without blanks around it"
        )
    try:
        expires_at = time.time() + parse_duration(options.ttl)
    except ValueError as exc:
        raise UsageError(f"--ttl = {options.ttl}: {exc}") from exc
    tenant = choose_token_tenant(options.tenant, sorted({key.tenant for key in auth.keys}))
    claims = Claims(
        resource=options.resource,
        exp=round(expires_at),
        thread=options.thread,
        tenant=tenant,
        aud=auth.token_audience,
    )
    print(sign_claims(claims, auth.token_secret.get_secret_value().encode()))
    return DONE


def choose_token_tenant(requested: str | None, tenants: Sequence[str]) -> str | None:
    """Return the tenant of the token: the requested one, or the only one; None if there are no
    keys."""
    if requested is None and len(tenants) < 2:
        return tenants[0] if tenants else None
    if requested not in tenants:
        raise UsageError(
            f"--tenant must be one of auth.keys: {', '.join(tenants) or 'there are none'}"
        )
    return requested
