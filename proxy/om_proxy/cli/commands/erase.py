"""`om-proxy store erase`: get the bytes of what was forgotten out of the database."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

from om_proxy.cli.answers import confirm, require_yes_or_terminal, show_progress
from om_proxy.cli.doctor.storage import say_pending
from om_proxy.cli.exit_status import DECLINED, DONE, NOT_WORKING
from om_proxy.cli.store_command import COMMAND_CALLER, is_erased_within, run_with_store
from om_proxy.settings.config import Settings, load
from om_proxy.storage.contract.memories import LeaseTable
from om_proxy.storage.contract.records import RecordKeeping
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.storage.promises import ERASURE_SENTENCES
from om_proxy.storage.values.records import AuditRecord

if TYPE_CHECKING:
    from om_proxy.storage.postgres.rewriting import Table, TableRewriter

BYTES_PER_MB = 2**20
WARNING = (
    "each table is locked while it is rewritten: chat goes on without memory meanwhile, and turns "
    "wait. The disk needs room for the largest table a second time."
)


def run(options: argparse.Namespace) -> int:
    """Wait for pending bytes or, with --rewrite, rewrite the tables of PostgreSQL."""
    storage = load(options.config).storage
    if not options.rewrite or not storage.is_postgres:
        return run_with_store(options, wait_erased)
    require_yes_or_terminal(options)
    return run_with_store(options, rewrite_all)


async def wait_erased(options: argparse.Namespace, settings: Settings, store: StoreStatus) -> int:
    """Wait until no forgotten bytes are pending, and return the exit status."""
    promise = await store.describe()
    if promise.erases == "rewrite" and not promise.separate_keys:
        print("forgotten bytes stay in the tables' files: run om-proxy store erase --rewrite")
        return DONE
    if options.rewrite:
        print(f"this store needs no rewrite: {ERASURE_SENTENCES[promise.erases]}")
    with show_progress("waiting for the readers"):
        is_erased = await is_erased_within(store, options.wait)
    if not is_erased:
        print(say_pending(promise))
        return NOT_WORKING
    print("no forgotten bytes are pending")
    if promise.erases == "rewrite":
        print("those in the tables' files go with om-proxy store erase --rewrite")
    return DONE


class DatedRecords(RecordKeeping, LeaseTable, Protocol):
    """The audit, and the clock that its records go by."""


async def rewrite_all(options: argparse.Namespace, settings: Settings, store: DatedRecords) -> int:
    """Rewrite the tables of the data, and that of a key store on a server."""
    storage = settings.storage
    status = await rewrite(store, storage.url, storage.prefix, options)
    if status == DONE and storage.keys_url and storage.keys_file is None:
        # imported only where it is used: the driver is an extra
        from om_proxy.storage.postgres.key_store import rewrite_keys  # noqa: PLC0415 - the driver is an extra

        await rewrite_keys(storage.keys_url, storage.keys_schema)
        print("the table of the key store is rewritten too")
    return status


async def rewrite(store: DatedRecords, url: str, prefix: str, options: argparse.Namespace) -> int:
    """Rewrite the tables, and return the exit status."""
    # imported only where it is used: the driver is an extra
    from om_proxy.storage.postgres.rewriting import RewriteOptions, TableRewriter  # noqa: PLC0415 - the driver is an extra

    limits = RewriteOptions(lock_timeout_s=options.lock_timeout, reader_timeout_s=options.wait)
    rewriter = await TableRewriter.open(url, prefix, limits)
    try:
        print(await _describe_tables(rewriter), WARNING, sep="\n", flush=True)
        if not options.yes and not confirm("Rewrite the tables now?"):
            print("nothing was rewritten")
            return DECLINED
        result = await rewriter.rewrite(_print_table)
    finally:
        await rewriter.close()
    counts = {"tables": result.rewritten}
    record = AuditRecord(await store.clock(), COMMAND_CALLER, "", "rewrite_tables", counts=counts)
    await store.add_audit([record])
    print(
        "what was forgotten before is gone from the tables; the server's log and backups keep it for "
        "as long as they are kept"
    )
    if result.later_receipts:
        print(
            f"{result.later_receipts} receipts are of what was forgotten since this began: run the "
            "command once more for them"
        )
    return DONE


async def _describe_tables(rewriter: TableRewriter) -> str:
    tables = await rewriter.list_tables()
    left = [table.size for table in tables if not table.is_done]
    done = f", {len(tables) - len(left)} are done already" if len(left) < len(tables) else ""
    return (
        f"{len(left)} tables to rewrite, {_render_size(sum(left))}, the largest "
        f"{_render_size(max(left, default=0))}{done}"
    )


def _render_size(size: int) -> str:
    return f"{size / BYTES_PER_MB:.1f} MB"


def _print_table(table: Table) -> None:
    print(f"rewriting {table.name}, {_render_size(table.size)}", flush=True)
