"""Put together the parts that work on memories: for a server (app/app.py), and for a command that
works on the store itself (cli/store_command.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from om_proxy.agents.embedding import EmbeddingModel
from om_proxy.agents.model_access.llm import LLM
from om_proxy.agents.models import TokenCounter, find_abilities
from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.edge.rounds.recall_offers import RecallOffers
from om_proxy.engine.background.indexing import is_indexed
from om_proxy.engine.background.performers.work_guard import WorkGuard
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.background.worker import MemoryWorker
from om_proxy.engine.event_feed.feed import EventFeed, EventReader
from om_proxy.engine.event_feed.stream import EventStream
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.message_index import IndexingSource, MessageIndex
from om_proxy.engine.message_vectors import EmbeddingChoice, MessageVectors, choose_embedding
from om_proxy.engine.policy import PolicyInForce
from om_proxy.engine.recall.conversations import OfferedThreads
from om_proxy.engine.recall.note_searching import StoredNotes
from om_proxy.engine.recall.performing import LookUpPerformer, ReadingRights
from om_proxy.engine.recall.searching import IndexedOrNewest, MessageSearch
from om_proxy.engine.recall.similar_messages import SimilarMessages
from om_proxy.engine.recall.turn_look_ups import TurnLookUps
from om_proxy.engine.turns.committing import Committer
from om_proxy.engine.turns.deliveries import Deliveries
from om_proxy.engine.turns.message_importer import MessageImporter
from om_proxy.engine.turns.preview import ContextPreviewer
from om_proxy.engine.turns.reconciling import Reconciler
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.management.api.access import KnownTenants
from om_proxy.management.api.services import AdminServices
from om_proxy.management.audit_log import AuditLog
from om_proxy.management.ledger_reader import LedgerReader
from om_proxy.management.memory_export import MemoryExporter
from om_proxy.management.message_reader import MessageReader
from om_proxy.management.steering.note_editor import NoteEditor
from om_proxy.management.steering.pin_board import PinBoard
from om_proxy.management.steering.work_requests import WorkRequests
from om_proxy.management.thread_admin import ThreadAdmin
from om_proxy.management.thread_reader import ThreadReader
from om_proxy.memory.dates import find_zone
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.memory.recall.look_ups import LookUps
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.wire.server.capacity.work_queues import WorkQueue


def create_look_ups(
    memories: Memories,
    policies: PolicyInForce,
    token_counter: TokenCounter,
    queue: WorkQueue,
    vectors: MessageVectors | None = None,
) -> Callable[[PreparedTurn], LookUps]:
    """Return the function that makes the look-ups of a turn. Whose messages they read comes from
    the turn's key alone. `queue`: in which they wait for a slot."""
    performer = create_look_up_performer(memories, policies, token_counter, vectors)

    def create(turn: PreparedTurn) -> LookUps:
        opened = turn.opened
        settings = opened.context.effective.memory
        zone = find_zone(opened.reconciled.projected.timezone, settings.timezone)
        retrieval = settings.retrieval
        # the client's own prompt shows all of its thread
        raw_from = 0 if turn.body is None else turn.raw_from
        rights = ReadingRights(
            opened.key, opened.look_up_scope, zone, retrieval.tokens, raw_from=raw_from
        )
        return TurnLookUps(
            performer,
            rights,
            queue,
            max_steps=retrieval.max_steps,
            timeout_s=retrieval.timeout,
        )

    return create


def create_background(
    memories: Memories,
    policies: PolicyInForce,
    llm: LLM,
    token_counter: TokenCounter,
    *,
    concurrency: int,
    clock: Callable[[], float] = time.time,
    is_busy: Callable[[], bool] = lambda: False,
    is_external: Callable[[], bool] = lambda: False,
) -> Background:
    """Create the background work. Nothing runs until a thread is woken or waited for. `is_busy`,
    `is_external`: as in Background."""
    count_tokens = token_counter.tokens
    worker = MemoryWorker(
        memories,
        Observer(llm, tokens=count_tokens, abilities=find_abilities),
        Reflector(llm, tokens=count_tokens, abilities=find_abilities),
        count_tokens,
        policies,
        WorkGuard(memories, policies, clock=clock),
        clock=clock,
        environ=os.environ,
    )
    return Background(
        memories,
        worker,
        policies,
        concurrency=concurrency,
        clock=clock,
        is_busy=is_busy,
        is_external=is_external,
    )


def create_message_vectors(
    memories: Memories, models: EmbeddingModel, committer: Committer
) -> MessageVectors:
    """Create what makes vectors, for searches and for the background. `committer`: of this
    process; it charges queries to the threads that ask."""
    return MessageVectors(memories.store, models, memories.facts, committer.add_query_costs)


def create_look_up_performer(
    memories: Memories,
    policies: PolicyInForce,
    token_counter: TokenCounter,
    vectors: MessageVectors | None = None,
) -> LookUpPerformer:
    """Create what looks up original messages, for the tool loop and for people. `vectors`: None:
    searches go by words alone."""
    store = memories.store
    indexed = IndexingSource(
        MessageIndex(store), lambda info: is_indexed(policies.current.settings, info)
    )

    def uses_index() -> bool:
        return policies.current.settings.storage.search != "false"

    notes = StoredNotes(
        memories, lambda resource: policies.current.settings.effective(None, resource).memory
    )

    async def choose(key: Key) -> EmbeddingChoice | None:
        settings = policies.current.settings
        if not settings.embedding_models:
            return None
        # a made-up key has no messages, so its searches cost no call of the operator's
        if not await store.threads(key.tenant, key.resource, limit=1):
            return None
        model = None if key.thread == RESOURCE_THREAD else (await memories.load(key)).model
        return choose_embedding(settings, model, key.resource)

    similar = SimilarMessages(vectors, choose) if vectors else None
    search = MessageSearch(IndexedOrNewest(indexed, store, uses_index), notes, similar)
    memories.traces.on_words_erased.append(search.drop_texts)
    return LookUpPerformer(memories, search, token_counter.tokens)


def create_admin_services(
    memories: Memories,
    policies: PolicyInForce,
    background: Background,
    token_counter: TokenCounter,
    secret: bytes,
    committer: Committer,
    clock: Callable[[], float] = time.time,
    ledger_writer: LedgerWriter | None = None,
    offers: RecallOffers | None = None,
    vectors: MessageVectors | None = None,
) -> AdminServices:
    """Create the performers that people reach by the admin API and by the command. `secret`: the
    store's own. `committer`: the one that stores turns in this process. `ledger_writer`: of a process
    that counts calls. `offers`: of a process that serves requests."""
    reconciler = committer.reconciler
    previewer = ContextPreviewer(
        memories, policies, background, token_counter, secret, clock, reconciler.deliveries
    )
    memories.traces.on_words_erased.append(previewer.drop_texts)
    event_reader = EventReader(memories, background.find_operation)
    return AdminServices(
        ThreadAdmin(memories, policies, clock=clock),
        ThreadReader(memories, policies, clock),
        previewer,
        NoteEditor(memories, policies, token_counter.tokens, clock),
        LedgerReader(memories.store, ledger_writer or LedgerWriter(memories.store, clock)),
        event_reader,
        EventStream(EventFeed(memories.store), event_reader),
        PinBoard(memories, policies, token_counter.tokens, clock),
        WorkRequests(memories, background, clock),
        secret,
        clock,
        memories.store,
        MessageReader(memories),
        MemoryExporter(memories.store),
        AuditLog(memories.store, partial(label_thread, secret), clock),
        MessageImporter(reconciler, committer, background),
        create_look_up_performer(memories, policies, token_counter, vectors),
        offers or RecallOffers(offered_threads=OfferedThreads(memories.store)),
        KnownTenants(memories.store),
        memories.facts,
    )


def create_committer(
    memories: Memories, background: Background, token_counter: TokenCounter, secret: bytes
) -> Committer:
    """Create what stores messages in a process that serves no requests; the engine has its own."""
    reconciler = Reconciler(
        memories,
        token_counter,
        secret,
        time.time,
        background.last_seq_being_read,
        Deliveries(memories.store),
    )
    return Committer(memories, reconciler, token_counter, time.time)
