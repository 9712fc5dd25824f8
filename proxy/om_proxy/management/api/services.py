"""The performers that the admin API's handlers call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from om_proxy.edge.rounds.recall_offers import RecallOffers
from om_proxy.engine.event_feed.feed import EventReader
from om_proxy.engine.event_feed.stream import EventStream
from om_proxy.engine.recall.performing import LookUpPerformer
from om_proxy.engine.turns.message_importer import MessageImporter
from om_proxy.engine.turns.preview import ContextPreviewer
from om_proxy.management.api.access import KnownTenants
from om_proxy.management.api.sign_in import SignIn
from om_proxy.management.audit_log import AuditLog
from om_proxy.management.memory_export import MemoryExporter
from om_proxy.management.message_reader import MessageReader
from om_proxy.management.steering.note_editor import NoteEditor
from om_proxy.management.steering.pin_board import PinBoard
from om_proxy.management.steering.work_requests import WorkRequests
from om_proxy.management.thread_admin import ThreadAdmin
from om_proxy.management.thread_reader import ThreadReader
from om_proxy.observability.facts import Facts
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.storage.base import Store


@dataclass(frozen=True, slots=True)
class AdminServices:
    """The services that a handler may use. `secret`: keys the labels of threads. `clock`: unix
    seconds."""

    thread_admin: ThreadAdmin
    thread_reader: ThreadReader
    previewer: ContextPreviewer
    note_editor: NoteEditor
    ledger_writer: LedgerWriter
    event_reader: EventReader
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
