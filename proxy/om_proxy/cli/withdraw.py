"""`om-proxy notes withdraw`: take a note's words out of what the model reads."""

from __future__ import annotations

import argparse

from om_proxy.cli.answers import print_json, print_text
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.routes.steering import (
    ChunkChange,
    EntryChange,
    WithdrawalQuery,
    drop_chunk,
    withdraw_entry,
)
from om_proxy.memory.model import Key


def run(options: argparse.Namespace) -> int:
    """Withdraw an entry, or drop a chunk."""
    return run_with_api(options, withdraw)


async def withdraw(api: LocalApi, options: argparse.Namespace) -> int:
    key = await find_thread(api.store, options)
    change = await _ask(api, key, options)
    if options.json:
        print_json(change)
    else:
        print_text(describe_withdrawal(change))
    return DONE


async def _ask(api: LocalApi, key: Key, options: argparse.Namespace) -> EntryChange | ChunkChange:
    if options.chunk:
        return await api.ask_about(
            drop_chunk, key, entry_id=options.id, expected_version=options.if_version
        )
    return await api.ask_about(
        withdraw_entry,
        key,
        WithdrawalQuery(resource=key.resource, forget=options.forget),
        entry_id=options.id,
        expected_version=options.if_version,
    )


def describe_withdrawal(change: EntryChange | ChunkChange) -> str:
    if isinstance(change, ChunkChange):
        return f"dropped; {len(change.chunks)} chunks wait, and the model reads the messages again"
    if change.erased is None:
        return "withdrawn; om-proxy notes undo takes it back"
    return f"withdrawn and erased, also in {change.erased.observations} older entries"
