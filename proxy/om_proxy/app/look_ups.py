"""Put together what looks up original messages. A server imports it with the first look-up."""

from __future__ import annotations

from collections.abc import Callable

from om_proxy.agents.models import TokenCounter
from om_proxy.engine.background.embedding import EmbeddingChoice, MessageVectors, choose_embedding
from om_proxy.engine.background.indexing import IndexingSource, MessageIndex, is_indexed
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.engine.recall.performing import LookUpPerformer, ReadingRights
from om_proxy.engine.recall.searching import IndexedOrNewest, MessageSearch, StoredNotes
from om_proxy.engine.recall.similar_messages import SimilarMessages
from om_proxy.engine.recall.turn_look_ups import TurnLookUps
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.dates import find_zone
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.memory.rounds import LookUps
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
