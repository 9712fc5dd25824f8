"""`om-proxy import`: read an export into the store, or the history of another program."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from om_proxy.cli.answers import print_json, show_progress
from om_proxy.cli.commands import history_import
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import print_error, run_with_store
from om_proxy.cli.visible_text import escape_line
from om_proxy.common.errors import UsageError
from om_proxy.engine.policy import Policy
from om_proxy.management.moving.importing import ImportOptions, ImportResult, import_memory
from om_proxy.settings.config import Settings
from om_proxy.storage.contract.removal import MemoryMoving


def run(options: argparse.Namespace) -> int:
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
    print_json(result) if options.json else print(render_result(result, options.dry_run))
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


def render_result(result: ImportResult, is_dry_run: bool) -> str:
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
