"""The routes that forget, and their receipts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hmac import compare_digest
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta, Struct
from msgspec.structs import replace

from om_proxy.common.errors import NotFound, OmError
from om_proxy.management.api.admin_call import AdminCall, AdminServices
from om_proxy.management.api.answers import UnixSeconds
from om_proxy.management.api.requests import Query, ResourceQuery, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.memory.model import Key
from om_proxy.settings.identity.keyed_hashes import label_thread, sign_content
from om_proxy.storage.values.records import ErasureState, ForgetResult, ForgetScope, StoredReceipt

logger = structlog.get_logger("audit")

RECEIPT_ID_BYTES = 16


class ForgottenRows(Struct, frozen=True, kw_only=True):
    """How much was removed."""

    threads: int
    messages: int
    observations: int
    generations: int
    reflections: int
    events: int


class ForgottenBytes(Struct, frozen=True, kw_only=True):
    """The state of the removed bytes: `gone`; `pending`, which the store waits for by itself;
    `keys_destroyed`: nothing can decrypt them; `until_rewrite` (PostgreSQL): until its tables are
    rewritten, or its log is used again; `not_covered`: forgetting does not reach them."""

    database: ErasureState
    log: ErasureState
    backups: ErasureState


class ForgetReceipt(Struct, frozen=True, kw_only=True):
    """The receipt of what was removed. Only the label names the thread or resource."""

    id: Annotated[
        str | None,
        Meta(
            description="`GET /receipts/{receipt}` shows it for 30 days; null: it could not be kept."
        ),
    ]
    at: UnixSeconds
    scope: Annotated[ForgetScope, Meta(description="What was forgotten as a whole.")]
    label: Annotated[
        str,
        Meta(description="Of the thread, or the resource_label; empty for a tenant."),
    ]
    forgotten: ForgottenRows
    bytes: ForgottenBytes
    signature: Annotated[
        str,
        Meta(
            description=(
                "HMAC-SHA256 under the store's secret, of the receipt as JSON without white space, "
                "with an empty signature. `om-proxy store receipt FILE` checks it."
            )
        ),
    ] = ""


def describe_receipt(
    receipt: StoredReceipt, secret: bytes, *, is_kept: bool = True
) -> ForgetReceipt:
    """Return the receipt as it stands now, signed."""
    result = receipt.result
    unsigned = ForgetReceipt(
        id=receipt.id if is_kept else None,
        at=receipt.at,
        scope=receipt.scope,
        label=receipt.label,
        forgotten=ForgottenRows(**result.counts),
        bytes=ForgottenBytes(database=result.database, log=result.log, backups=result.backups),
    )
    return replace(unsigned, signature=sign_content(secret, msgspec.json.encode(unsigned)))


def is_receipt_genuine(receipt: Mapping[str, object], secret: bytes) -> bool:
    """Say whether this store signed the receipt, and nothing in it was changed. `receipt`: its JSON,
    with its fields in any order."""
    signature = receipt.get("signature")
    unsigned = {**receipt, "signature": ""}
    try:
        known = msgspec.convert(unsigned, ForgetReceipt)
    except msgspec.ValidationError:
        return False
    # somebody has added a field that we do not know
    if not isinstance(signature, str) or msgspec.to_builtins(known) != unsigned:
        return False
    expected = sign_content(secret, msgspec.json.encode(known))
    return compare_digest(signature.encode(), expected.encode())


def count_forgotten(receipt: ForgetReceipt) -> dict[str, int]:
    return msgspec.structs.asdict(receipt.forgotten)


async def forget_thread(call: AdminCall[ThreadQuery, None]) -> ForgetReceipt:
    key = call.named_key
    forgotten = await call.services.thread_admin.forget(key, expected_version=call.expected_version)
    return await _keep_receipt(call.services, "thread", key, forgotten)


async def forget_resource(call: AdminCall[ResourceQuery, None]) -> ForgetReceipt:
    key = call.named_key
    forgotten = await call.services.thread_admin.forget_all(key.tenant, key.resource)
    return await _keep_receipt(call.services, "resource", key, forgotten)


async def forget_tenant(call: AdminCall[Query, None]) -> ForgetReceipt:
    """Forget a tenant. A caller can name its own tenant only; another looks unknown."""
    key = call.named_key
    forgotten = await call.services.thread_admin.forget_all(key.tenant)
    return await _keep_receipt(call.services, "tenant", key, forgotten)


async def _keep_receipt(
    services: AdminServices, scope: ForgetScope, key: Key, forgotten: ForgetResult
) -> ForgetReceipt:
    """Keep and return the receipt. What is forgotten is forgotten, whether or not the store keeps
    it."""
    label = "" if scope == "tenant" else label_thread(services.secret, key)
    id_ = secrets.token_hex(RECEIPT_ID_BYTES)
    receipt = StoredReceipt(id_, services.clock(), key.tenant, scope, label, forgotten)
    try:
        await services.store.add_receipt(receipt)
    except OmError as exc:
        logger.error("receipt.unwritten", error=type(exc).__name__, thread=label)
        return describe_receipt(receipt, services.secret, is_kept=False)
    return describe_receipt(receipt, services.secret)


async def show_receipt(call: AdminCall[Query, None]) -> ForgetReceipt:
    store = call.services.store
    receipt = await store.receipt(call.path_names["receipt"], call.services.clock())
    if receipt is None or call.tenant not in (None, receipt.tenant):
        raise NotFound("there is no such receipt; a receipt is kept for 30 days")
    return describe_receipt(receipt, call.services.secret)


ROUTES = (
    AdminRoute(
        method="DELETE",
        path="/threads/{thread}",
        summary="Forget a thread: its messages and all notes about it, also in a shared log.",
        handler=forget_thread,
        answer=ForgetReceipt,
        count_changes=count_forgotten,
    ),
    AdminRoute(
        method="DELETE",
        path="/resources/{resource}",
        summary=(
            "Forget a resource: all its threads and their shared log. If that is interrupted, ask "
            "again: it goes on."
        ),
        handler=forget_resource,
        query=ResourceQuery,
        answer=ForgetReceipt,
        count_changes=count_forgotten,
    ),
    AdminRoute(
        method="DELETE",
        path="/tenants/{tenant}",
        summary=(
            "Forget all threads and logs of a tenant. A caller can forget its own alone, by the name that "
            "its lists show. If that is interrupted, ask again: it goes on."
        ),
        handler=forget_tenant,
        query=Query,
        answer=ForgetReceipt,
        count_changes=count_forgotten,
    ),
    AdminRoute(
        method="GET",
        path="/receipts/{receipt}",
        summary="Show the receipt of what was forgotten, with what is left of the bytes by now.",
        handler=show_receipt,
        query=Query,
        answer=ForgetReceipt,
    ),
)
