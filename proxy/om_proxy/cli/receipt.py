"""`om-proxy store receipt`: show what was forgotten, and check the signature of a receipt."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from om_proxy.cli.answers import print_json
from om_proxy.cli.exit_status import DONE, NOT_WORKING
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.edge.admin.requests import normalize_stored_name
from om_proxy.edge.admin.routes.forgetting import (
    ForgetReceipt,
    is_receipt_genuine,
    show_receipt,
)
from om_proxy.errors import UsageError
from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.memory.model import RESOURCE_THREAD, Key

MAX_RECEIPT_BYTES = 65_536
BYTES_STATE_WORDS = {
    "gone": "gone",
    "pending": "still there; the store removes them by itself",
    "keys_destroyed": "cannot be decrypted any more",
    "until_rewrite": "still there, until the server writes over them",
    "not_covered": "not covered",
}


def run(options: argparse.Namespace) -> int:
    """Show the receipt with the given id, or verify the one in a file."""
    if (options.id is None) == (options.verify is None):
        raise UsageError("give the id of a receipt, or --verify with the file that holds one")
    if options.verify is None:
        return run_with_api(options, show)
    # read before the store is opened: a wrong file needs none
    receipt = parse_receipt(read_file(options.verify), options.verify)

    return run_with_api(options, lambda api, options: verify(api, options, receipt))


def read_file(name: str) -> bytes:
    """Read a file, or standard input for `-`."""
    if name == "-":
        return sys.stdin.buffer.read(MAX_RECEIPT_BYTES)
    try:
        with Path(name).open("rb") as file:
            return file.read(MAX_RECEIPT_BYTES)
    except OSError as exc:
        raise UsageError(f"{name} cannot be read: {exc.strerror}") from exc


def parse_receipt(content: bytes, name: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(content, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"{name} holds no receipt: give the JSON that the forgetting answered"
        ) from exc


async def verify(api: LocalApi, options: argparse.Namespace, receipt: dict[str, object]) -> int:
    """Say whether the receipt is genuine and, if a thread or a resource is named, whether it is about
    that. Return the exit status."""
    if not is_receipt_genuine(receipt, api.services.secret):
        print("the receipt was changed, or another store signed it")
        return NOT_WORKING
    print("this store signed the receipt, and nothing in it was changed")
    if options.thread is None and options.resource is None:
        return DONE
    if receipt.get("label") != await _label_named(api, options, str(receipt.get("id"))):
        print("it is about another thread or resource")
        return NOT_WORKING
    print("it is about what you named")
    return DONE


async def _label_named(api: LocalApi, options: argparse.Namespace, id_: str) -> str:
    """Return the label of what the options name. The tenant is named too, or the receipt is kept."""
    stored = await api.store.receipt(id_, await api.store.clock())
    tenant = options.tenant or (stored.tenant if stored else None)
    if tenant is None:
        raise UsageError("the receipt is no longer kept: give the --tenant that it is of")
    thread = normalize_stored_name(options.thread or RESOURCE_THREAD)
    resource = thread if options.resource is None else normalize_stored_name(options.resource)
    return label_thread(api.services.secret, Key(tenant, resource, thread))


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    receipt = await api.ask(show_receipt, path_names={"receipt": options.id})
    if options.json:
        print_json(receipt)
    else:
        print("\n".join(render_receipt(receipt)))
    return DONE


def render_receipt(receipt: ForgetReceipt) -> list[str]:
    """Return the receipt in lines for a person."""
    rows = receipt.forgotten
    label = f" {receipt.label}" if receipt.label else ""
    return [
        f"{receipt.scope}{label}, forgotten at {datetime.fromtimestamp(receipt.at, UTC):%Y-%m-%d %H:%M:%S} UTC",
        f"removed: {rows.threads} threads, {rows.messages} messages, {rows.observations} notes in "
        f"{rows.generations} logs, {rows.events} events",
        f"bytes in the database: {BYTES_STATE_WORDS[receipt.bytes.database]}",
        f"bytes in its log: {BYTES_STATE_WORDS[receipt.bytes.log]}",
        f"bytes in backups: {BYTES_STATE_WORDS[receipt.bytes.backups]}",
    ]
