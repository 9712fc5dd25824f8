"""Forget a thread, a resource or a tenant, and check the receipt of that."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TextIO

import msgspec

from om_proxy.cli.answers import (
    confirm,
    escape_line,
    print_json,
    require_yes_or_terminal,
    show_progress,
)
from om_proxy.cli.exit_status import DECLINED, DONE, NOT_WORKING
from om_proxy.cli.store_command import LocalApi, is_erased_within, read_file, run_with_api
from om_proxy.cli.thread_choice import choose_tenant, find_tenant, find_thread_info, render_thread
from om_proxy.common.errors import NotFound, UsageError
from om_proxy.management.api.admin_call import AnyCall
from om_proxy.management.api.requests import normalize_stored_name
from om_proxy.management.api.routes.forgetting import (
    ForgetReceipt,
    forget_resource,
    forget_tenant,
    forget_thread,
    is_receipt_genuine,
)
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.contract.status import StoreStatus

# enough for a backup that reads the bytes; a reader that takes longer may never end
ERASE_TIMEOUT_S = 60.0
MAX_RECEIPT_BYTES = 65_536
KEYS_STAY = (
    "its key is not destroyed yet, because storage.keys_url cannot be asked, or another program "
    "reads the database's files"
)
FILES_ARE_READ = (
    "its bytes are still in the database's files: another program is reading them, or the file is "
    "large and must be written anew; waiting until that is over"
)
LOG_STAYS = (
    "its bytes are still in the server's log, which is rewritten at most once a minute; "
    "waiting until it is"
)


def run(options: argparse.Namespace) -> int:
    """Forget a thread, a resource or a tenant. The command asks first, unless --yes is given."""
    require_one_choice(options)
    require_yes_or_terminal(options)
    return run_with_api(options, forget)


def require_one_choice(options: argparse.Namespace) -> None:
    """Raise UsageError unless the arguments say what to forget: nobody forgets a tenant because a
    name was left out."""
    if options.all and options.thread is not None:
        raise UsageError("--all takes no thread: give one of them")
    if options.all and options.resource is None and options.tenant is None:
        raise UsageError("--all needs the --resource or the --tenant to forget")
    if not options.all and options.thread is None:
        raise UsageError("name a thread, or give --all with --resource or --tenant")


async def forget(
    api: LocalApi, options: argparse.Namespace, erase_timeout_s: float = ERASE_TIMEOUT_S
) -> int:
    """Forget what the options name, print what was removed, and return the exit status."""
    choice = await (choose_all if options.all else choose_thread)(api, options)
    if not options.json:
        print(choice.description, flush=True)
    if not options.yes and not confirm(f"Forget {choice.name} for good?"):
        print("nothing was forgotten")
        return DECLINED
    with show_progress("forgetting"):
        receipt = await api.ask(choice.handler, options, key=choice.key)
    if options.json:
        print_json(receipt)
    else:
        print(render_receipt(receipt))
    if "pending" in (receipt.bytes.log, receipt.bytes.backups):
        output = sys.stderr if options.json else sys.stdout
        await wait_until_erased(api.store, erase_timeout_s, output)
    return DONE


class Choice(NamedTuple):
    """The choice of threads to forget."""

    handler: Callable[[AnyCall], Awaitable[ForgetReceipt]]
    key: Key
    name: str
    description: str


async def choose_thread(api: LocalApi, options: argparse.Namespace) -> Choice:
    info = await find_thread_info(api.store, options)
    return Choice(forget_thread, info.key, "this thread", render_thread(info))


async def choose_all(api: LocalApi, options: argparse.Namespace) -> Choice:
    """Choose a resource, or a tenant."""
    if options.tenant is None:
        tenant = await choose_tenant(api.store, None)
    else:
        tenant = await find_tenant(api.store, options.tenant, is_exact=options.yes)
    if options.resource is None:
        assert tenant is not None  # `require_one_choice`
        described = f"all memory of the tenant {escape_line(tenant)}"
        return Choice(forget_tenant, Key(tenant, "", RESOURCE_THREAD), "this tenant", described)
    resource = normalize_stored_name(options.resource)
    found = None if tenant is None else await api.store.resource(tenant, resource)
    if found is None or tenant is None:
        raise NotFound(f"there is no memory of a resource {escape_line(resource)}")
    count = f"{found.threads}{' or more' if found.has_more_threads else ''}"
    described = f"resource {escape_line(resource)}, tenant {escape_line(tenant)}: {count} threads"
    key = Key(tenant, resource, RESOURCE_THREAD)
    return Choice(forget_resource, key, "this resource", described)


async def wait_until_erased(store: StoreStatus, timeout_s: float, output: TextIO) -> None:
    """Wait until the removed bytes are gone, at most `timeout_s`: no other program reads them any
    more, or the server has rewritten its log."""
    promise = await store.describe()
    is_in_log = promise.erases == "log"
    said = LOG_STAYS if is_in_log else FILES_ARE_READ
    print(KEYS_STAY if promise.separate_keys else said, file=output, flush=True)
    with show_progress("waiting for the log" if is_in_log else "waiting for the reader"):
        is_erased = await is_erased_within(store, timeout_s)
    still_there = (
        "its bytes are still there; the running server, or else the next one that starts, will "
        "erase them"
    )
    print("its bytes are gone" if is_erased else still_there, file=output)


def render_receipt(receipt: ForgetReceipt) -> str:
    rows = receipt.forgotten
    pending = f", {rows.reflections} unfinished reflection" if rows.reflections else ""
    threads = "" if rows.threads == 1 else f"{rows.threads} threads, "
    named = f"\nreceipt: {receipt.id}" if receipt.id else ""
    return (
        f"forgotten: {threads}{rows.messages} messages, {rows.observations} notes in "
        f"{rows.generations} logs{pending}{named}"
    )


def verify_receipt(options: argparse.Namespace) -> int:
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
