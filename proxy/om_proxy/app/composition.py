"""Put together the parts that work on memories: for a server (app/app.py), and for a command that
works on the store itself (cli/store_command.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from om_proxy.agents.embedding import EmbeddingModel
from om_proxy.agents.model_access.llm import LLM
from om_proxy.agents.models import TokenCounter, find_abilities
from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.common.errors import ConfigError, render_install_command
from om_proxy.engine.background.embedding import MessageVectors
from om_proxy.engine.background.performers.work_guard import WorkGuard
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.background.worker import MemoryWorker
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.engine.turns.committing import Committer
from om_proxy.engine.turns.deliveries import Deliveries
from om_proxy.engine.turns.reconciling import Reconciler

if TYPE_CHECKING:
    from om_proxy.observability.spans import Tracing


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


def open_tracing(is_on: bool) -> Tracing | None:
    """Return the spans of this process (OpenTelemetry); None while `telemetry.otel` is off, and then
    nothing of it is imported. Raise ConfigError if its packages are not installed."""
    if not is_on:
        return None
    try:
        from om_proxy.observability.spans import Tracing, create_provider  # noqa: PLC0415 - optional
    except ImportError as exc:
        raise ConfigError(
            "telemetry.otel needs packages that are not installed: "
            + render_install_command("otel")
        ) from exc
    return Tracing(create_provider())
