"""Put together what people and their programs reach below `/om`: the dashboard, the admin API and MCP.
A server imports it with the first such request."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from om_proxy.agents.models import TokenCounter
from om_proxy.app.look_ups import create_look_up_performer
from om_proxy.common.errors import OmError
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.rounds.recall_offers import RecallOffers
from om_proxy.engine.background.embedding import MessageVectors
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.event_feed.feed import EventFeed, EventStream
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.engine.recall.conversations import OfferedThreads
from om_proxy.engine.turns.committing import Committer
from om_proxy.engine.turns.message_importer import MessageImporter
from om_proxy.engine.turns.preview import ContextPreviewer
from om_proxy.management.api.access import KnownTenants
from om_proxy.management.api.admin_api import AdminApi
from om_proxy.management.api.admin_call import AdminServices
from om_proxy.management.api.sign_in import SignIn
from om_proxy.management.audit_log import AuditLog
from om_proxy.management.dashboard.pages import (
    SESSION_PATH,
    is_dashboard_path,
    send_dashboard,
    send_session,
)
from om_proxy.management.mcp.route import MCP_PATH, McpRoute
from om_proxy.management.memory_export import MemoryExporter
from om_proxy.management.message_reader import MessageReader
from om_proxy.management.note_editor import NoteEditor
from om_proxy.management.pin_board import PinBoard
from om_proxy.management.thread_admin import ThreadAdmin
from om_proxy.management.work_requests import WorkRequests
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.wire.server import responses
from om_proxy.wire.server.capacity.admission import Admission, BufferedBodyPermit
from om_proxy.wire.server.capacity.work_queues import WorkQueues
from om_proxy.wire.server.disconnect import ClientDisconnected


class Management:
    """Serves the requests below `/om`."""

    def __init__(self, services: AdminServices, queues: WorkQueues, admission: Admission) -> None:
        self.services = services
        self._admin = AdminApi(services, queues)
        self._mcp = McpRoute(services, queues)
        self._admission = admission

    async def serve(self, scope: Scope, receive: Receive, send: Send, config: EdgeConfig) -> None:
        is_session = scope["raw_path"] == SESSION_PATH
        if is_session or is_dashboard_path(scope["raw_path"]):
            try:
                if is_session:
                    sign_in, private = self.services.sign_in, responses.keep_private(send)
                    await send_session(scope, receive, private, config, sign_in)
                else:
                    await send_dashboard(scope, send, config)
            except ClientDisconnected:
                return
            except OmError as exc:
                await responses.send_error(send, exc)
            return
        with BufferedBodyPermit(self._admission, scope, receive) as permit:
            serve = self._mcp if scope["raw_path"] == MCP_PATH else self._admin
            await serve(scope, permit.receive, responses.keep_private(send), config)


def create_admin_services(
    memories: Memories,
    policies: PolicyInForce,
    background: Background,
    token_counter: TokenCounter,
    secret: bytes,
    committer: Committer,
    audit_log: AuditLog,
    clock: Callable[[], float] = time.time,
    ledger_writer: LedgerWriter | None = None,
    offers: RecallOffers | None = None,
    vectors: MessageVectors | None = None,
    sign_in: SignIn | None = None,
) -> AdminServices:
    """Create the performers that people reach by the admin API and by the command. `secret`: the
    store's own. `committer`: the one that stores turns in this process. `ledger_writer`: of a process
    that counts calls. `offers`: of a process that serves requests."""
    reconciler = committer.reconciler
    previewer = ContextPreviewer(
        memories, policies, background, token_counter, secret, clock, reconciler.deliveries
    )
    memories.traces.on_words_erased.append(previewer.drop_texts)
    return AdminServices(
        memories=memories,
        policies=policies,
        thread_admin=ThreadAdmin(memories, policies),
        previewer=previewer,
        note_editor=NoteEditor(memories, policies, token_counter.tokens, clock),
        ledger_writer=ledger_writer or LedgerWriter(memories.store, clock),
        event_stream=EventStream(EventFeed(memories.store), memories, background.find_operation),
        pin_board=PinBoard(memories, policies, token_counter.tokens, clock),
        work_requests=WorkRequests(memories, background, clock),
        secret=secret,
        clock=clock,
        store=memories.store,
        message_reader=MessageReader(memories),
        exporter=MemoryExporter(memories.store),
        audit_log=audit_log,
        message_importer=MessageImporter(reconciler, committer, background),
        look_ups=create_look_up_performer(memories, policies, token_counter, vectors),
        recall_offers=offers or RecallOffers(offered_threads=OfferedThreads(memories.store)),
        known_tenants=KnownTenants(memories.store),
        facts=memories.facts,
        sign_in=sign_in,
    )
