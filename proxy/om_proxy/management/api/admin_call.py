"""A parsed request of the admin API, with the services that its handler may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from om_proxy.common.errors import BadRequest
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.rounds.recall_offers import RecallOffers
from om_proxy.engine.event_feed.feed import EventStream
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.engine.recall.performing import LookUpPerformer
from om_proxy.engine.turns.message_importer import MessageImporter
from om_proxy.engine.turns.preview import ContextPreviewer
from om_proxy.management.api.access import KnownTenants, Visitor
from om_proxy.management.api.sign_in import SignIn
from om_proxy.management.audit_log import AuditLog
from om_proxy.management.memory_export import MemoryExporter
from om_proxy.management.message_reader import MessageReader
from om_proxy.management.note_editor import NoteEditor
from om_proxy.management.pin_board import PinBoard
from om_proxy.management.thread_admin import ThreadAdmin
from om_proxy.management.work_requests import WorkRequests
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.storage.base import Store
from om_proxy.wire.server.headers import Header

_Query = TypeVar("_Query", bound=Struct)
_Body = TypeVar("_Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminServices:
    """The services that a handler may use. `secret`: keys the labels of threads. `clock`: unix
    seconds."""

    memories: Memories
    policies: PolicyInForce
    thread_admin: ThreadAdmin
    previewer: ContextPreviewer
    note_editor: NoteEditor
    ledger_writer: LedgerWriter
    event_stream: EventStream
    pin_board: PinBoard
    work_requests: WorkRequests
    secret: bytes
    clock: Callable[[], float]
    store: Store
    message_reader: MessageReader
    exporter: MemoryExporter
    audit_log: AuditLog
    message_importer: MessageImporter
    look_ups: LookUpPerformer
    recall_offers: RecallOffers
    known_tenants: KnownTenants
    facts: Facts
    sign_in: SignIn | None = None  # None: no link signs anybody in


class AdminCall(Struct, Generic[_Query, _Body], frozen=True, kw_only=True):
    """A parsed request of the admin API."""

    services: AdminServices
    visitor: Visitor
    query: _Query  # of the route's type
    body: _Body  # likewise; bytes of a LargeBody; None: the route reads no body
    # the thread that the path names, or without a thread name its resource, or without both names
    # its tenant; None on a route about no single one
    key: Key | None = None
    path_names: Mapping[str, str] = {}  # decoded
    entry_id: int | None = None  # of an entry or a message: the number that the path names
    expected_version: int | None = None  # of `If-Match`
    headers: Sequence[Header] = ()
    wants_body: bool = True  # of the answer; False: the method is HEAD
    config: EdgeConfig

    @property
    def tenant(self) -> str | None:
        """Whose threads the caller sees; None: those of all tenants."""
        return self.visitor.tenant

    @property
    def named_key(self) -> Key:
        assert self.key is not None  # the route's path names a thread, a resource or a tenant
        return self.key

    @property
    def named_entry_id(self) -> int:
        assert self.entry_id is not None  # the route's path names an entry
        return self.entry_id

    @property
    def named_tenant(self) -> str:
        """The tenant of a route about one tenant. Raise BadRequest if the admin named none."""
        return require_tenant(self.tenant)


AnyCall: TypeAlias = AdminCall[Any, Any]


def require_tenant(tenant: str | None) -> str:
    """Return the tenant. Raise BadRequest if the admin token asks without naming one."""
    if tenant is None:
        raise BadRequest(
            "with the admin token, say whose: add ?tenant=… as the list of threads shows it",
            param="tenant",
        )
    return tenant
