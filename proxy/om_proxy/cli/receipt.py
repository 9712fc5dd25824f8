"""`om-proxy store receipt`: check the signature of a receipt of what was forgotten."""

from __future__ import annotations

import argparse

import msgspec

from om_proxy.cli.exit_status import DONE, NOT_WORKING
from om_proxy.cli.store_command import LocalApi, read_file, run_with_api
from om_proxy.edge.admin.requests import normalize_stored_name
from om_proxy.edge.admin.routes.forgetting import is_receipt_genuine
from om_proxy.errors import UsageError
from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.memory.model import RESOURCE_THREAD, Key

MAX_RECEIPT_BYTES = 65_536


def run(options: argparse.Namespace) -> int:
    """Verify the receipt in the file."""
    # read before the store is opened: a wrong file needs none
    receipt = parse_receipt(read_file(options.file, MAX_RECEIPT_BYTES), options.file)
    return run_with_api(options, lambda api, options: verify(api, options, receipt))


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
