"""`om-proxy store copy`: copy one store into another."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from om_proxy.app.store_opening import are_one_file, open_store
from om_proxy.cli.answers import print_json
from om_proxy.cli.exit_status import DONE, NOT_WORKING
from om_proxy.cli.store_command import print_error, run_quietly
from om_proxy.cli.visible_text import escape_line
from om_proxy.common.errors import ConfigError, StorageError, UsageError
from om_proxy.management.moving.copying import CopyResult, StoreCopier
from om_proxy.management.moving.importing import show_names
from om_proxy.memory.model import Key
from om_proxy.settings.config import load_named_store
from om_proxy.settings.config.sections.storage import StorageSettings
from om_proxy.storage.base import Store

STATEMENT_TIMEOUT_S = 60.0  # no request waits for these


def run(options: argparse.Namespace) -> int:
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
    return report(result, verified=options.verify)


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


def report(result: CopyResult, *, verified: bool) -> int:
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
