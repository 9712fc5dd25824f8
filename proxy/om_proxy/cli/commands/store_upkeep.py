"""Keep a store in order: `om-proxy store backup`, `verify`, `migrate`, `index` and `erase`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from om_proxy.agents.embedding import EmbeddingModels
from om_proxy.agents.model_access.litellm_adapter import LiteLLM
from om_proxy.cli.answers import (
    confirm,
    escape_line,
    print_json,
    render_count,
    require_yes_or_terminal,
    show_progress,
)
from om_proxy.cli.doctor.store import find_database, say_pending
from om_proxy.cli.exit_status import DECLINED, DONE, NOT_WORKING
from om_proxy.cli.store_command import COMMAND_CALLER, is_erased_within, print_error, run_with_store
from om_proxy.common.errors import ModelError, StorageError, UsageError
from om_proxy.engine.background.embedding import MessageVectors, embed_all
from om_proxy.engine.background.indexing import index_all
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.management.moving.verifying import Fault, VerifyResult, verify_store
from om_proxy.observability.facts import Facts
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.settings.config import Settings, WatchedSettings, load
from om_proxy.storage.base import Store
from om_proxy.storage.contract.memories import LeaseTable
from om_proxy.storage.contract.passage_index import IndexCheck, PassageIndex
from om_proxy.storage.contract.records import RecordKeeping
from om_proxy.storage.contract.removal import MemoryMoving
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.storage.promises import ERASURE_SENTENCES
from om_proxy.storage.shared.newest_passages import NEWEST_MESSAGES
from om_proxy.storage.sqlite.backup import back_up_file, check_file
from om_proxy.storage.sqlite.key_store import SqliteKeyStore
from om_proxy.storage.sqlite.schema import require_own_database
from om_proxy.storage.values.records import AuditRecord

if TYPE_CHECKING:
    from om_proxy.storage.postgres.rewriting import Table, TableRewriter

LOCK_TIMEOUT_S = 5.0
MAX_LISTED_FAULTS = 100
_STATES = {"repaired": "repaired", "repairable": "--repair computes it anew", "lasting": "stays"}
BYTES_PER_MB = 2**20
WARNING = (
    "each table is locked while it is rewritten: chat goes on without memory meanwhile, and turns "
    "wait. The disk needs room for the largest table a second time."
)


def back_up(options: argparse.Namespace) -> int:
    settings = load(options.config)
    database = find_keys(settings) if options.keys else find_database(settings)
    if database is None:
        raise UsageError(
            f"storage.{'keys_url' if options.keys else 'url'} names a server, which has backups of "
            "its own: for PostgreSQL pg_dump or archived WAL, for Redis its AOF "
            "(docs/guides/moving.md#backups)"
        )
    check_content(database, is_keys=options.keys)
    target = Path(options.file)
    with show_progress(f"writing {target}"):
        back_up_file(database, target, is_compact=options.compact)
    print(f"backed up: {target}, {target.stat().st_size / 2**20:.1f} MiB")
    if settings.storage.keys_url is not None and not options.keys:
        print(
            "its keys are in storage.keys_url, which needs backups of its own "
            "(docs/guides/encryption.md#keep-the-keys-apart)"
        )
    return DONE


def check_content(database: Path, *, is_keys: bool) -> None:
    """Raise StorageError if the file is not what it is taken for: its copy would be no backup."""
    try:
        if not is_keys:
            require_own_database(database, LOCK_TIMEOUT_S)
        elif asyncio.run(SqliteKeyStore(database).identify()) is None:
            raise StorageError(f"{database} is empty, and no key store")
    except StorageError as exc:
        setting = "storage.keys_url" if is_keys else "storage.url"
        said = str(exc) if str(database) in str(exc) else f"{database}: {exc}"
        raise StorageError(f"{setting}: {said}; name the file that the server uses") from exc


def find_keys(settings: Settings) -> Path | None:
    """Find the file of the key store; None: it is on a server."""
    if settings.storage.keys_url is None:
        raise UsageError("storage.keys_url is not set: the keys are in the database itself")
    if settings.storage.keys_file is None:
        return None
    file = Path(settings.storage.keys_file)
    if not file.is_file():
        raise UsageError(f"storage.keys_url names {file}, which does not exist")
    return file


def verify(options: argparse.Namespace) -> int:
    database = find_database(load(options.config))
    if database is not None:
        check_file(database)
    return run_with_store(options, verify_all)


async def verify_all(options: argparse.Namespace, settings: Settings, store: MemoryMoving) -> int:
    with show_progress("reading every thread"):
        result = await verify_store(store, repairs=options.repair)
    print_json(result) if options.json else print_verification(result)
    if result.busy_threads:
        print_error(f"{result.busy_threads} threads were in use; run it again for them")
    return DONE if result.is_sound else NOT_WORKING


def print_verification(result: VerifyResult) -> None:
    for fault in result.faults[:MAX_LISTED_FAULTS]:
        print(render_fault(fault))
    if len(result.faults) > MAX_LISTED_FAULTS:
        print(f"… and {len(result.faults) - MAX_LISTED_FAULTS} more")
    print(
        f"verified: {result.threads} threads with {result.messages} messages, "
        f"{len(result.faults)} faults"
    )


def render_fault(fault: Fault) -> str:
    tenant, resource, thread = map(escape_line, fault.key)
    what = f"thread {thread} of resource {resource}" if thread else f"shared log of {resource}"
    return f"{what}, tenant {tenant}: {fault.text} ({_STATES[fault.state]})"


def migrate(options: argparse.Namespace) -> int:
    """Open the store, which makes it or brings it up to date."""
    return run_with_store(options, report_schema, create=True)


async def report_schema(options: argparse.Namespace, settings: Settings, store: StoreStatus) -> int:
    promise = await store.describe()
    print(f"{promise.kind}: schema {promise.schema_version} is up to date")
    return DONE


def index(options: argparse.Namespace) -> int:
    return run_with_store(options, work_on_index)


async def work_on_index(options: argparse.Namespace, settings: Settings, store: Store) -> int:
    if not (await store.describe()).has_index:
        print_error(
            f"this store keeps no index: a search reads the newest {NEWEST_MESSAGES} messages"
        )
        return DONE
    if options.check:
        return await check_index(store, options)
    if options.drop:
        return await drop_index(settings, store)
    if options.rebuild:
        await store.outdate_index()
    return await fill_index(settings, store)


async def check_index(store: PassageIndex, options: argparse.Namespace) -> int:
    """Print what is wrong with the index."""
    with show_progress("comparing the index with the messages"):
        result = await store.check_index()
    print_json(result) if options.json else print_check(result)
    if result.faults:
        print_error("om-proxy store index --rebuild makes it anew")
    return NOT_WORKING if result.faults else DONE


def print_check(result: IndexCheck) -> None:
    for fault in result.faults:
        print(fault)
    print(
        f"index: {render_count(result.threads, 'thread')} with "
        f"{render_count(result.passages, 'passage')} and {render_count(result.vectors, 'vector')}, "
        f"{render_count(len(result.faults), 'fault')}"
    )


async def drop_index(settings: Settings, store: PassageIndex) -> int:
    with show_progress("removing the index"):
        await store.drop_index()
    print("the index is dropped")
    if settings.may_index:
        print_error("memory.retrieval or storage.search is on: a server indexes again")
    return DONE


async def fill_index(settings: Settings, store: Store) -> int:
    with show_progress("indexing messages"):
        threads, messages = await index_all(store, settings)
    print(f"indexed: {render_count(threads, 'thread')} with {render_count(messages, 'message')}")
    if not settings.may_index:
        print_error("nothing is to be indexed: memory.retrieval or storage.search is off")
    return await make_vectors(settings, store) if settings.embedding_models else DONE


async def make_vectors(settings: Settings, store: Store) -> int:
    """Make the vectors that are lacking."""
    litellm, facts, ledger_writer = LiteLLM(), Facts(), LedgerWriter(store)
    ledger_writer.subscribe_to(facts)
    models = EmbeddingModels(litellm)
    memories = Memories(store, PolicyInForce(WatchedSettings(settings)))
    try:
        with show_progress("making vectors"):
            count = await embed_all(memories, MessageVectors(store, models, facts), settings)
    except ModelError as exc:
        print_error(f"the embedding model gives no vectors: {exc}")
        return NOT_WORKING
    finally:
        await ledger_writer.close()
        models.close()
        litellm.close()
    print(f"made: {render_count(count, 'vector')}")
    return DONE


def erase(options: argparse.Namespace) -> int:
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
    status = await rewrite_tables(store, storage.url, storage.prefix, options)
    if status == DONE and storage.keys_url and storage.keys_file is None:
        # imported only where it is used: the driver is an extra
        from om_proxy.storage.postgres.key_store import rewrite_keys  # noqa: PLC0415 - the driver is an extra

        await rewrite_keys(storage.keys_url, storage.keys_schema)
        print("the table of the key store is rewritten too")
    return status


async def rewrite_tables(
    store: DatedRecords, url: str, prefix: str, options: argparse.Namespace
) -> int:
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
