"""Write everything stored of a thread, a resource or a tenant, one JSON record a line, and read it
back."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from om_proxy.cli.answers import escape_json, escape_line, print_json, show_progress
from om_proxy.cli.commands import history_import
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, print_error, run_with_store
from om_proxy.cli.thread_choice import choose_tenant, find_thread
from om_proxy.common.errors import StorageError, UsageError
from om_proxy.engine.policy import Policy
from om_proxy.management.api.routes.export_import import ExportQuery, export_memory
from om_proxy.management.moving.importing import ImportOptions, ImportResult, import_memory
from om_proxy.settings.config import Settings
from om_proxy.storage.contract.removal import MemoryMoving
from om_proxy.storage.whole_threads import list_tenants

ONLY_OWNER = 0o600  # the file holds conversations
LAST_RECORD_START = b'{"om":"end"'


async def export(api: LocalApi, options: argparse.Namespace) -> int:
    """Write the export to stdout, or to the file of --output."""
    check_secret_options(options)
    pieces = read_pieces(api, options, await choose_scopes(api, options))
    if options.with_secret:
        pieces = add_secret(pieces, await api.store.secret())
    first = await anext(pieces)  # what is wrong is said before a file is made
    pieces = _begin_with(first, pieces)
    if options.output is None:
        # a terminal may show it, also one behind a pipe
        await write_pieces(pieces, sys.stdout.buffer, is_shown=True)
        return DONE
    with open_private_file(options.output) as file, show_progress(f"writing {options.output}"):
        await write_pieces(pieces, file)
    return DONE


def check_secret_options(options: argparse.Namespace) -> None:
    """Raise UsageError if the secret would be shown without being asked for."""
    if options.with_secret and options.output is None and not options.yes:
        raise UsageError(
            "--with-secret writes the key of all tenants and fingerprints: name a file with "
            "--output, or add --yes to print it"
        )


async def choose_scopes(
    api: LocalApi, options: argparse.Namespace
) -> list[tuple[str, ExportQuery]]:
    """Return what to export: of which tenants, and what of each."""
    if options.all:
        if options.thread is not None or options.resource is not None or options.tenant is not None:
            raise UsageError(
                "--all exports every tenant: leave out THREAD, --resource and --tenant"
            )
        return [(tenant, ExportQuery()) async for tenant in list_tenants(api.store)]
    if options.thread is not None:
        key = await find_thread(api.store, options)
        return [(key.tenant, ExportQuery(thread=key.thread, resource=key.resource))]
    tenant = await choose_tenant(api.store, options.tenant) or ""
    return [(tenant, ExportQuery(resource=options.resource))]


async def read_pieces(
    api: LocalApi, options: argparse.Namespace, scopes: list[tuple[str, ExportQuery]]
) -> AsyncIterator[bytes]:
    """Yield one export after the other; an empty store has one without threads."""
    for tenant, query in scopes or [("", ExportQuery())]:
        async for piece in (
            await api.ask(export_memory, options, tenant=tenant, query=query)
        ).pieces:
            yield piece


async def _begin_with(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


async def add_secret(pieces: AsyncIterator[bytes], secret: bytes) -> AsyncIterator[bytes]:
    """Write the secret into the first record. The admin API never answers it."""
    first = await anext(pieces)
    header, _, rest = first.partition(b"\n")
    yield msgspec.json.encode(msgspec.json.decode(header) | {"secret": secret.hex()}) + b"\n" + rest
    async for piece in pieces:
        yield piece


async def write_pieces(
    pieces: AsyncIterator[bytes], file: BinaryIO, *, is_shown: bool = False
) -> None:
    """Write the lines as the admin API answers them. `is_shown`: with hidden characters as JSON
    escapes, which are the same JSON. Raise StorageError if the last record is missing."""
    piece = b""
    async for piece in pieces:
        file.write(escape_json(piece.decode()).encode() if is_shown else piece)
    file.flush()
    last_line = piece.rstrip(b"\n").rpartition(b"\n")[2]
    if not last_line.startswith(LAST_RECORD_START):
        raise StorageError("the export broke off, so a part is missing; try again")


@contextmanager
def open_private_file(path: str) -> Iterator[BinaryIO]:
    """Create a file that only its owner can read. Remove it if the export does not end. Raise
    UsageError if it exists already."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, ONLY_OWNER)
    except FileExistsError as exc:
        raise UsageError(f"{path} exists already: name another file") from exc
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def import_(options: argparse.Namespace) -> int:
    """Import the file into the store of the configuration, which may be a new one."""
    if options.program is not None:
        return history_import.run(options)
    if len(options.file) > 1:
        raise UsageError("name one export; histories of other programs are imported with --from")
    (options.file,) = options.file
    path = Path(options.file)
    if not path.is_file():
        fault = "is no file" if path.exists() else "does not exist"
        raise UsageError(f"{path} {fault}; name what `om-proxy export --output` has written")
    return run_with_store(options, import_file, create=True)


async def import_file(options: argparse.Namespace, settings: Settings, store: MemoryMoving) -> int:
    path = Path(options.file)
    chosen = ImportOptions(
        read_tenant_map(options.tenant_map),
        options.skip_existing,
        options.dry_run,
        find_settings=Policy(settings).base_settings,
    )
    with show_progress(f"reading {path}"):
        result = await import_memory(store, partial(read_file, path), chosen)
    print_json(result) if options.json else print(render_import(result, options.dry_run))
    if result.unknown_fields:
        print_error(
            "left out, because this release does not know them: "
            + escape_line(", ".join(result.unknown_fields))
        )
    return DONE


def read_file(path: Path) -> Iterator[bytes]:
    """Yield the lines. Raise UsageError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}") from exc


def read_tenant_map(pairs: Sequence[str]) -> Mapping[str, str]:
    """Return the new tenants by the old ones."""
    tenants = {}
    for pair in pairs:
        old, separator, new = pair.partition("=")
        if not (separator and old and new):
            raise UsageError(f"--tenant-map {pair}: write OLD=NEW")
        if old in tenants:
            raise UsageError(f"--tenant-map names {old} twice: a tenant becomes one other")
        tenants[old] = new
    return tenants


def render_import(result: ImportResult, is_dry_run: bool) -> str:
    lines = [
        f"{'would be imported' if is_dry_run else 'imported'}: {result.threads} threads with "
        f"{result.messages} messages"
    ]
    if result.present_threads:
        lines.append(f"already there: {result.present_threads} threads")
    if result.kept_threads:
        lines.append(f"left as they are in the store: {result.kept_threads} threads")
    if result.is_rekeyed:
        lines.append("fingerprints and labels were computed anew for this store")
    return "\n".join(lines)
