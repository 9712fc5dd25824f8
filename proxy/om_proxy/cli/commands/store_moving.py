"""Move what is stored: `om-proxy store copy` into another store, `rekey` to another master key, and
`rekey-tenant` to another API key."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from om_proxy.app.store_opening import are_one_file, open_store
from om_proxy.cli.answers import escape_line, print_json, show_progress
from om_proxy.cli.exit_status import CONFLICT, DONE, NOT_FOUND, NOT_WORKING
from om_proxy.cli.store_command import is_erased_within, print_error, run_quietly, run_with_store
from om_proxy.common.errors import ConfigError, StorageError, UsageError
from om_proxy.management.moving.copying import CopyResult, StoreCopier
from om_proxy.management.moving.importing import create_fingerprint, show_names
from om_proxy.memory.model import Key
from om_proxy.settings.config import Settings, load, load_named_store
from om_proxy.settings.config.sections.storage import StorageSettings
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.tenants import find_tenant
from om_proxy.storage.base import Store
from om_proxy.storage.contract.removal import MemoryMoving
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.storage.encryption.key_store import EncryptedStore

STATEMENT_TIMEOUT_S = 60.0  # no request waits for these
# of a log that the server may have rewritten a moment ago, or refuses to rewrite
ERASURE_TIMEOUT_S = 300.0


def copy(options: argparse.Namespace) -> int:
    """Copy FROM into TO, which may be a new store."""
    source, target = read_place(options.source), read_place(options.target)
    if source.place == target.place or are_one_file(source.file, target.file):
        raise UsageError("FROM and TO are the same store")
    if source.file is not None and not Path(source.file).is_file():
        raise UsageError(f"FROM: there is no file {source.file}")
    return run_quietly(copy_store(source, target, options))


def read_place(argument: str) -> StorageSettings:
    """Return the storage that an argument names: a URL, or a configuration file, whose URL and
    password no process list shows."""
    if argument.endswith((".yaml", ".yml")):
        settings = load_named_store(argument)
    else:
        url = argument if "://" in argument else f"sqlite:///{argument}"
        try:
            settings = StorageSettings(url=url)
        except ValidationError as exc:
            raise UsageError(
                f"{url.partition('://')[0]}://… is no store: give sqlite:///FILE, "
                "postgresql://…, redis://…, or a configuration file (.yaml)"
            ) from exc
    if not settings.is_shared:
        raise UsageError("a store in a server's own memory cannot be copied")
    return settings.model_copy(update={"timeout": STATEMENT_TIMEOUT_S})


async def copy_store(
    source_settings: StorageSettings, target_settings: StorageSettings, options: argparse.Namespace
) -> int:
    source = await open_place("FROM", source_settings, create=False)
    try:
        target = await open_place("TO", target_settings, create=True)
        try:
            copier = StoreCopier(source, target, updates=options.update, on_batch=show_batch)
            result = await copier.copy(verifies=options.verify)
        finally:
            await target.close()
    finally:
        await source.close()
    if options.json:
        print_json(result)
        return DONE if result.is_complete else NOT_WORKING
    return report_copy(result, verified=options.verify)


async def open_place(name: str, settings: StorageSettings, *, create: bool) -> Store:
    """Open one of the two stores. An error says which one, by the name of its argument."""
    try:
        return await open_store(settings, create=create)
    except (ConfigError, StorageError) as exc:
        said = str(exc).removeprefix("storage.url: ")
        raise type(exc)(f"{name}: {said}") from exc


def show_batch(result: CopyResult) -> None:
    """Say how far the copy is, if somebody is there to read it."""
    if sys.stderr.isatty():
        count = result.threads + result.present_threads
        print(f"{count} threads, {result.messages} messages written", file=sys.stderr)


def report_copy(result: CopyResult, *, verified: bool) -> int:
    """Print what was copied and what is missing. Return the exit status."""
    print(f"copied: {result.threads} threads with {result.messages} messages")
    if result.present_threads:
        print(f"already there: {result.present_threads} threads")
    for keys, what in (
        (
            result.differing,
            "stand in TO in another state; to replace them by those of FROM, add --update",
        ),
        (
            result.changed,
            "changed in FROM meanwhile; stop its servers, and run it again with --update",
        ),
        (
            result.surplus,
            "of TO are not in FROM: forgotten there since they were copied, or begun in TO",
        ),
        (
            result.unreadable,
            "have a value that cannot be read; `om-proxy store verify` on FROM or TO names it",
        ),
        (result.unequal, "are not equal in both stores; run it again with --update"),
    ):
        _report_keys(keys, what)
    if result.lacking_sums:
        print_error(f"{result.lacking_sums} sums of FROM's ledger are not in TO; run it again")
    if verified and result.is_complete:
        print("verified: both stores are equal")
    return DONE if result.is_complete else NOT_WORKING


def _report_keys(keys: Sequence[Key], what: str) -> None:
    if keys:
        print_error(f"{len(keys)} threads {what}: {escape_line(show_names(list(keys)))}")


def rekey(options: argparse.Namespace) -> int:
    """Move every data key to the key store of the settings, if they name one, and wrap it under their
    first master key."""
    if not load(options.config).storage.key_sources:
        raise UsageError(
            "set storage.encryption_key first, to the list [new, old] of master keys; to encrypt a "
            "database, copy it with om-proxy store copy"
        )
    return run_with_store(options, rekey_store, moves_keys=True)


async def rekey_store(options: argparse.Namespace, settings: Settings, store: StoreStatus) -> int:
    rotation = cast(EncryptedStore, store).key_rotation  # each backend has one
    with show_progress("moving keys"):
        moved_count = await rotation.move_keys()
        is_erased = not moved_count or (
            (await store.describe()).erases != "rewrite"
            and await is_erased_within(store, ERASURE_TIMEOUT_S)
        )
    if moved_count:
        print(
            f"moved to the key store: {moved_count} data keys; older backups hold them beside the data"
        )
    if not is_erased:
        print(
            "their bytes are still in the database: a reader holds them, or its tables or log must "
            "be rewritten (PostgreSQL: om-proxy store erase --rewrite; "
            "SQLite: om-proxy store erase; Redis: BGREWRITEAOF)"
        )
    with show_progress("wrapping keys"):
        count = await rotation.rewrap_keys()
    if count:
        print(
            f"wrapped anew: {count} data keys; the older master keys open nothing here any more: "
            "take them out of storage.encryption_key"
        )
    else:
        print(
            "the first master key of storage.encryption_key wraps all data keys; no other is needed"
        )
    return DONE


def rekey_tenant(options: argparse.Namespace) -> int:
    """Move a tenant to another credential. The credentials are not arguments: a process list and
    a shell history would show them."""
    keys = tuple((key.tenant, key.key.get_secret_value()) for key in load(options.config).auth.keys)
    old = read_credential("old")
    new = read_credential("new")
    return run_with_store(
        options, lambda options, settings, store: move_tenant(store, old, new, keys)
    )


def read_credential(which: str) -> str:
    """Read the old or the new credential from the environment, the terminal or the next line of
    standard input."""
    if credential := os.environ.get(f"OM_PROXY_{which.upper()}_CREDENTIAL"):
        return credential.strip()
    if sys.stdin.isatty():
        return getpass.getpass(f"{which} API key: ").strip()
    return sys.stdin.readline().strip()


async def move_tenant(
    store: MemoryMoving, old: str, new: str, keys: tuple[tuple[str, str], ...] = ()
) -> int:
    """Move what is stored under one credential to another, and return the exit status.

    `keys`: tenant and key of each of `auth.keys`; the new credential may be one of them."""
    secret = await store.secret()
    source = find_credential_tenant(old, secret)
    target = find_credential_tenant(new, secret, keys)
    if source == target:
        raise UsageError("the two credentials are the same; there is nothing to move")
    fingerprint = create_fingerprint(secret, target)
    moved = await store.move_tenant(source, target, fingerprint)
    if moved.name_conflicts:
        print_error(
            f"nothing was moved: the new credential has {moved.name_conflicts} threads or shared logs "
            "with the same names; forget one of each first (om-proxy forget THREAD --tenant T, where "
            f"T is {source} for the old credential and {target} for the new one)"
        )
        return CONFLICT
    if not moved.threads:
        print_error(
            "there is no memory of the old credential in this store; "
            "give the credential as clients sent it, without `Bearer`"
        )
        return NOT_FOUND
    print(
        f"moved: {moved.threads} threads with {moved.messages} messages, "
        f"to tenant {escape_line(target)}"
    )
    return DONE


def find_credential_tenant(
    credential: str, secret: bytes, keys: tuple[tuple[str, str], ...] = ()
) -> str:
    """Find the tenant of a request with this credential."""
    if not credential:
        raise UsageError("a credential is empty; give the old one, then the new one")
    headers = [(b"authorization", b"Bearer " + credential.encode())]
    tenant = find_tenant(headers, IdentityRules(keys=keys), secret)
    assert tenant is not None  # every request with a credential has a tenant
    return tenant
