"""Look whether everything stored fits together, or bring the schema of the store up to date."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_json, show_progress
from om_proxy.cli.doctor.report import find_database
from om_proxy.cli.exit_status import DONE, NOT_WORKING
from om_proxy.cli.store_command import print_error, run_with_store
from om_proxy.cli.visible_text import escape_line
from om_proxy.management.moving.verifying import Fault, VerifyResult, verify_store
from om_proxy.settings.config import Settings, load
from om_proxy.storage.contract.removal import MemoryMoving
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.storage.sqlite.backup import check_file

MAX_LISTED_FAULTS = 100
_STATES = {"repaired": "repaired", "repairable": "--repair computes it anew", "lasting": "stays"}


def run(options: argparse.Namespace) -> int:
    database = find_database(load(options.config))
    if database is not None:
        check_file(database)
    return run_with_store(options, verify)


async def verify(options: argparse.Namespace, settings: Settings, store: MemoryMoving) -> int:
    with show_progress("reading every thread"):
        result = await verify_store(store, repairs=options.repair)
    print_json(result) if options.json else print_result(result)
    if result.busy_threads:
        print_error(f"{result.busy_threads} threads were in use; run it again for them")
    return DONE if result.is_sound else NOT_WORKING


def print_result(result: VerifyResult) -> None:
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
