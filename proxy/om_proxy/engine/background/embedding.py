"""Have a model make vectors of indexed messages while their threads are quiet, and of queries; report
what that costs (docs/contributing/recall.md#vectors).

Vectors are made outside any transaction. What a model refuses gets a vector without bytes, so that
it is not asked about again. Each model has walks of its own. A model that fails is asked less and
less.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from om_proxy.agents.embedding import LOCAL_PREFIX, Embedded, EmbeddingModel
from om_proxy.common.errors import ConfigError, ModelBusy, ModelError, OmError, Unusable
from om_proxy.common.off_loop import run_off_loop
from om_proxy.engine.background.quiet_walk import QuietWalk, QuietWalker, finish_work
from om_proxy.engine.background.thread_run import loop_time
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import find_token_prices
from om_proxy.memory.ledger import EMPTY_ACCOUNT, NO_MEMORY_COSTS, Account, assess_memory_call
from om_proxy.memory.lifecycle.transitions import add_memory_costs
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.recall.vectors import MAX_EMBEDDED_CHARS, encode_vector, write_embedded_text
from om_proxy.memory.token_prices import Tokens, Usage
from om_proxy.observability.facts import CallOutcome, Facts, MemoryCallEnded
from om_proxy.settings.config import Settings
from om_proxy.storage.contract.passage_index import UnembeddedMessage, VectorIndex
from om_proxy.storage.values.listing import ThreadInfo, ThreadPage, ThreadPlace
from om_proxy.wire.apis.message_parts import read_indexed_text

BATCH_MESSAGES = 64
# 22 to 69 messages a second on one core (all-MiniLM-L6-v2, int8)
LOCAL_BATCH_MESSAGES = 16
MANY_TEXTS = 8
CHARS_PER_TOKEN = 4  # of a text that is not counted
# tells whether a model that refuses a message answers at all
PROBE_TEXT = "hello"
NO_VECTOR = b""
MAX_SEARCH_S = 2.0  # the query's vector, and again comparing it
# of the time that a look-up has, so that words alone still answer in it
SHARE_OF_TIMEOUT = 0.75

logger = structlog.get_logger("vectors")

EMBEDDING_KEY = Key("", "", "embedding")  # what is leased
LEASE_S = 200.0  # a call may take 60 s; of a process that is killed meanwhile
FULL_WALK_S = 600.0
MAX_BATCH_PAUSE_S = 1.0
FIRST_PAUSE_S = 30.0  # after a failure of the model; twice as long after each further one
MAX_PAUSE_S = 3_600.0


class EmbeddingChoice(NamedTuple):
    """Which model a search asks, and how long vectors may take."""

    model: str
    timeout_s: float  # for the query's vector, and again for comparing it
    search_s: float  # from the beginning of the search until both have ended


def choose_embedding(
    settings: Settings, model: str | None, resource: str
) -> EmbeddingChoice | None:
    """Return the embedding model for messages of this model and resource, or None."""
    if not settings.keeps_vectors:
        return None
    try:
        retrieval = settings.effective(model, resource).memory.retrieval
    except ConfigError:
        return None  # each request reports it
    if not (retrieval.enabled and retrieval.vector and retrieval.embedding_model):
        return None
    search_s = SHARE_OF_TIMEOUT * retrieval.timeout
    return EmbeddingChoice(retrieval.embedding_model, min(MAX_SEARCH_S, search_s), search_s)


# is told what a call has cost, once it has ended, and of which key it was
Charge = Callable[[Key, Account], None]


def charge_nobody(key: Key, account: Account) -> None:
    """Leave the cost to the ledger by day alone."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageVectors:
    """The vectors of one store. `charge_query`: is told what vectors of queries have cost."""

    store: VectorIndex
    models: EmbeddingModel
    facts: Facts
    charge_query: Charge = charge_nobody
    # held by the search that compares vectors: the memory of one is the memory of all
    comparing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def embed_batch(
        self, key: Key, model: str, limit: int | None = None, charge: Charge = charge_nobody
    ) -> int:
        """Make the missing vectors of the first indexed messages of the thread. Return how many
        were written; 0: none is lacking, or all of them went meanwhile. Raise ModelError and
        StorageError. `charge`: is told of each call, also of one that failed and was paid."""
        is_local = model.startswith(LOCAL_PREFIX)
        limit = limit or (LOCAL_BATCH_MESSAGES if is_local else BATCH_MESSAGES)
        read = await self.store.read_unembedded(key, model, limit)
        if not read:
            return 0
        texts = await run_off_loop(
            len(read), lambda: [_write_text(message) for message in read], MANY_TEXTS
        )
        vectors = await self._embed_all(key, model, texts, charge)
        return await self.store.write_vectors(key, read, model, vectors)

    async def embed_query(self, key: Key, model: str, query: str) -> bytes:
        """Return the vector of a query. Raise ModelError."""
        texts = [query[:MAX_EMBEDDED_CHARS]]
        [vector] = await self._embed(key, model, texts, self.charge_query)
        return vector

    async def _embed_all(
        self, key: Key, model: str, texts: Sequence[str], charge: Charge
    ) -> list[bytes]:
        """Return a vector for each text. A text that the model refuses gets none, if the model
        takes others."""
        try:
            return await self._embed(key, model, texts, charge)
        except ModelBusy:
            raise
        except ModelError:
            await self._embed(key, model, [PROBE_TEXT], charge)
        vectors = []
        for text in texts:
            try:
                vectors += await self._embed(key, model, [text], charge)
            except ModelBusy:
                raise
            except ModelError:
                vectors.append(NO_VECTOR)
        return vectors

    async def _embed(
        self, key: Key, model: str, texts: Sequence[str], charge: Charge
    ) -> list[bytes]:
        """Ask once. Raise Unusable for vectors that are none, or of several lengths."""
        outcome: CallOutcome = "abandoned"
        started = time.perf_counter()
        embedded: Embedded | None = None
        try:
            # some servers refuse an empty text
            embedded = await self.models.embed_texts(model, [text.strip() or " " for text in texts])
            vectors = await run_off_loop(len(texts), lambda: _encode(embedded, texts), MANY_TEXTS)
            outcome = "answered"
            return vectors
        except ModelError:
            outcome = "failed"
            raise
        finally:
            seconds = time.perf_counter() - started
            for account in self._report(key, model, texts, embedded, outcome, seconds):
                charge(key, account)

    def _report(
        self,
        key: Key,
        model: str,
        texts: Sequence[str],
        embedded: Embedded | None,
        outcome: CallOutcome,
        seconds: float,
    ) -> list[Account]:
        """Report a call. Return what was paid for it."""
        usage = Usage()
        accounts: tuple[tuple[str, Account], ...] = ()
        if not model.startswith(LOCAL_PREFIX) and (embedded or outcome == "abandoned"):
            reported = embedded.tokens if embedded else 0
            usage = Usage(reported or sum(map(len, texts)) // CHARS_PER_TOKEN)
            account = assess_memory_call(
                Tokens.of(usage), find_token_prices(model), is_estimated=not reported
            )
            accounts = ((model, account),)
        is_priced = all(account.is_priced for _, account in accounts)
        cost = sum(account.cost for _, account in accounts) if is_priced else None
        self.facts.emit(
            MemoryCallEnded(
                keys=(key,),
                work="embed",
                model=model,
                outcome=outcome,
                seconds=seconds,
                calls=1,
                usage=usage,
                cost=cost,
                accounts=accounts,
            )
        )
        return [account for _, account in accounts]


def _write_text(read: UnembeddedMessage) -> str:
    before = read_indexed_text(read.before) if read.before else None
    return write_embedded_text(
        read_indexed_text(read.message), read.length, before, read.before_length
    )


def _encode(embedded: Embedded, texts: Sequence[str]) -> list[bytes]:
    try:
        vectors = [encode_vector(vector) for vector in embedded.vectors]
    except ValueError as exc:
        raise Unusable(f"the embedding model gave {exc}") from exc
    if len(vectors) != len(texts) or len({len(vector) for vector in vectors}) > 1:
        raise Unusable("the embedding model gave vectors of several lengths")
    return vectors


@dataclass(frozen=True, slots=True)
class EmbeddingWork:
    """The making of one model's vectors, as a `QuietWork`."""

    memories: Memories
    vectors: MessageVectors
    model: str
    full_walk_interval_s: float = FULL_WALK_S
    max_pause_s: float = MAX_BATCH_PAUSE_S

    async def find_threads(
        self, active_before: float, after: ThreadPlace | None, limit: int
    ) -> ThreadPage:
        return await self.vectors.store.unembedded_threads(self.model, active_before, after, limit)

    def is_wanted(self, settings: Settings, info: ThreadInfo) -> bool:
        choice = choose_embedding(settings, info.model, info.key.resource)
        return choice is not None and choice.model == self.model

    async def do_batch(self, key: Key) -> int | None:
        """Do the batch. What it cost is stored with the thread."""
        paid = EMPTY_ACCOUNT

        def charge(_: Key, account: Account) -> None:
            nonlocal paid
            paid = paid.add(account)

        try:
            return await self.vectors.embed_batch(key, self.model, charge=charge) or None
        finally:
            if paid.calls:
                await self._add_to_thread(key, paid)

    async def _add_to_thread(self, key: Key, account: Account) -> None:
        def add(memory: Memory) -> Memory:
            if not memory.version:  # it was forgotten meanwhile
                return memory
            return add_memory_costs(memory, NO_MEMORY_COSTS.add(account, memory.history))

        await self.memories.update(key, add)


async def embed_all(memories: Memories, vectors: MessageVectors, settings: Settings) -> int:
    """Make all vectors that are lacking, now. Return their number. Raise OmError; what was made
    stays."""
    count = 0
    for model in settings.embedding_models:
        _, made = await finish_work(EmbeddingWork(memories, vectors, model), settings)
        count += made
    return count


class ModelWalk(QuietWalk):
    """The walks for one model, with pauses after its failures."""

    _failures = 0  # in a row
    _retry_at = 0.0  # by the machine's clock

    async def run_once(self, walker: QuietWalker, settings: Settings) -> int:
        """Return the number of vectors; 0 if the model failed."""
        if self._machine_clock() < self._retry_at:
            return 0
        try:
            made = await super().run_once(walker, settings)
        except ModelError as exc:
            pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self._failures)
            if isinstance(exc, ModelBusy):
                pause = max(pause, exc.retry_after_s or 0.0)
            self._failures = min(self._failures + 1, 10)
            self._retry_at = self._machine_clock() + pause
            _report_failure(exc, retry_s=round(pause))
            return 0
        self._failures = 0
        return made


def create_vector_filler(
    memories: Memories,
    vectors: MessageVectors,
    settings: Callable[[], Settings],
    is_external: Callable[[], bool] = lambda: False,
    machine_clock: Callable[[], float] = loop_time,
) -> QuietWalker:
    """Create the task of one process that makes vectors. `settings`: returns those in force.
    `machine_clock`: seconds that only grow."""

    def create_walks(settings: Settings) -> list[ModelWalk]:
        works = [EmbeddingWork(memories, vectors, model) for model in settings.embedding_models]
        return [ModelWalk(memories.store, work, machine_clock) for work in works]

    return QuietWalker(
        memories.store, EMBEDDING_KEY, LEASE_S, settings, create_walks, _report_failure, is_external
    )


def _report_failure(error: OmError, **fields: float) -> None:
    logger.warning("vectors.failed", error=type(error).__name__, work="background", **fields)
