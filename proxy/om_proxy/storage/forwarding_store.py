"""A store that forwards every call to another store. A subclass overrides what it does differently.

Each method is named, so that type checkers compare it with the protocol."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from om_proxy.storage.base import Store

P = ParamSpec("P")
T = TypeVar("T")

Method = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def forward(method: Method[P, T]) -> Method[P, T]:
    """Return a method that calls this one of `inner`."""
    name = method.__name__

    async def forward_call(self: ForwardingStore, /, *args: P.args, **options: P.kwargs) -> T:
        answer: T = await getattr(self.inner, name)(*args, **options)
        return answer

    return forward_call


def list_methods(part: type) -> list[str]:
    """Return the names of the methods of a store, or of a part of it."""
    return [name for name, _ in inspect.getmembers(part, inspect.iscoroutinefunction)]


class ForwardingStore(ABC):
    """The `Store` protocol, with each method forwarded to `inner`."""

    @property
    @abstractmethod
    def inner(self) -> Store:
        """The store that is used now. Raise StorageError if there is none at the moment."""

    load = forward(Store.load)
    version = forward(Store.version)
    refresh = forward(Store.refresh)
    refresh_shared = forward(Store.refresh_shared)
    commit = forward(Store.commit)
    commit_shared = forward(Store.commit_shared)
    add_events = forward(Store.add_events)
    events = forward(Store.events)
    event_position = forward(Store.event_position)
    webhook_state = forward(Store.webhook_state)
    set_webhook_state = forward(Store.set_webhook_state)
    resource_backlog = forward(Store.resource_backlog)
    other_thread_tails = forward(Store.other_thread_tails)
    outline = forward(Store.outline)
    messages = forward(Store.messages)
    stored_messages = forward(Store.stored_messages)
    messages_by_seq = forward(Store.messages_by_seq)
    find_passages = forward(Store.find_passages)
    read_unindexed = forward(Store.read_unindexed)
    index_passages = forward(Store.index_passages)
    unindexed_threads = forward(Store.unindexed_threads)
    unindexed_of_resource = forward(Store.unindexed_of_resource)
    outdate_index = forward(Store.outdate_index)
    drop_index = forward(Store.drop_index)
    check_index = forward(Store.check_index)
    read_unembedded = forward(Store.read_unembedded)
    write_vectors = forward(Store.write_vectors)
    unembedded_threads = forward(Store.unembedded_threads)
    read_vectors = forward(Store.read_vectors)
    read_vectors_at = forward(Store.read_vectors_at)
    generations = forward(Store.generations)
    generation_summaries = forward(Store.generation_summaries)
    beginnings = forward(Store.beginnings)
    due_threads = forward(Store.due_threads)
    claim = forward(Store.claim)
    set_due = forward(Store.set_due)
    lease = forward(Store.lease)
    release = forward(Store.release)
    threads = forward(Store.threads)
    find_threads = forward(Store.find_threads)
    idle_threads = forward(Store.idle_threads)
    resources = forward(Store.resources)
    resource = forward(Store.resource)
    mark_delivered = forward(Store.mark_delivered)
    delivered_reply = forward(Store.delivered_reply)
    note_forgotten = forward(Store.note_forgotten)
    forgotten_at = forward(Store.forgotten_at)
    forget = forward(Store.forget)
    forget_batch = forward(Store.forget_batch)
    observations = forward(Store.observations)
    generation_entries = forward(Store.generation_entries)
    drop_generations = forward(Store.drop_generations)
    add_audit = forward(Store.add_audit)
    audit = forward(Store.audit)
    add_receipt = forward(Store.add_receipt)
    receipt = forward(Store.receipt)
    commit_erasing = forward(Store.commit_erasing)
    wait_erased = forward(Store.wait_erased)
    move_tenant = forward(Store.move_tenant)
    restore = forward(Store.restore)
    adopt_secret = forward(Store.adopt_secret)
    secret = forward(Store.secret)
    add_to_ledger = forward(Store.add_to_ledger)
    prune = forward(Store.prune)
    sum_ledger = forward(Store.sum_ledger)
    totals = forward(Store.totals)
    clock = forward(Store.clock)
    describe = forward(Store.describe)
    check_schema = forward(Store.check_schema)
    ping = forward(Store.ping)
    close = forward(Store.close)
