"""Read and prune events. The script that writes an event draws its id, so ids are in the order in
which events become visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key
from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.encryption import hold_key_of
from om_proxy.storage.redis.rows import (
    OwnedEvent,
    decode_event,
    decode_row,
    encode,
    encode_new_event,
    encode_sealed_event,
)
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared.event_encoding import remove_thread
from om_proxy.storage.shared.forgetting import MAX_NAME_AHEAD_S
from om_proxy.storage.values.records import (
    MAX_EVENT_AGE_S,
    MAX_EVENTS,
    EventPage,
    WebhookState,
)

# by one script: some milliseconds
MAX_PRUNED_EVENTS = 1_000
NO_KEYS = -1  # the events of all threads


async def select_events(
    session: Session,
    tenant: str | None,
    keys: Sequence[Key] | None,
    after: int | None,
    limit: int,
) -> EventPage:
    """Return a page of events; see `Store.events`."""
    own = None if keys is None else [key for key in set(keys) if tenant in (None, key.tenant)]
    newest, is_gap, stored = await _read_events(session, tenant, own, after, limit)
    cursor = stored[-1].id if len(stored) == limit else newest
    held = await session.keyring.hold(session, {event.key_id for event in stored})
    events = tuple(event.open(held.find(event.key_id)) for event in stored)
    return EventPage(events, cursor, is_gap)


async def _read_events(
    session: Session,
    tenant: str | None,
    keys: Sequence[Key] | None,
    after: int | None,
    limit: int,
) -> tuple[int, bool, tuple[OwnedEvent, ...]]:
    """Return the id of the newest event, whether there is a gap, and the events."""
    newest, _pruned, is_gap, ids, data, key_ids = await session.run(
        "events",
        "" if tenant is None else f"={tenant}",
        "" if after is None else after,
        limit,
        NO_KEYS if keys is None else len(keys),
        *(name for key in keys or () for name in key),
    )
    return int(newest), bool(is_gap), tuple(map(decode_event, ids, data, key_ids))


async def select_position(session: Session, before: int = 0) -> int:
    """Return `Store.event_position`."""
    names = session.keys
    newest = int(await session.call("GET", names.of_store("event")) or 0)
    if not before:
        return newest
    found = await session.call("ZREVRANGE", names.of_store("events"), before, before)
    if found:
        return int(found[0])
    return int(await session.call("GET", names.of_store("pruned")) or 0)


async def add_thread_events(session: Session, key: Key, events: Sequence[Event]) -> None:
    """Write the newest of these events of a thread. A thread that is not there has none."""
    while True:
        held = await hold_key_of(session, key)
        encoded = [encode_new_event(key, event, held.row) for event in events[-MAX_EVENTS:]]
        is_written = await session.run(
            "add_events", MAX_EVENTS, *key, held.row_key_id or b"", len(encoded), *encoded
        )
        # else the thread has got another key meanwhile, or one that this process cannot have
        if is_written or session.keyring.masters is None:
            return


async def prune_old(session: Session, now: float) -> None:
    """Remove the events that are too old, some by each script, and the forgotten names."""
    oldest_at = now - MAX_EVENT_AGE_S
    forgotten = session.keys.of_store("forgotten")
    await session.call("ZREMRANGEBYSCORE", forgotten, "-inf", f"({oldest_at!r}")
    await session.call("ZREMRANGEBYSCORE", forgotten, f"({now + MAX_NAME_AHEAD_S!r}", "+inf")
    while await session.run("prune_events", oldest_at, MAX_PRUNED_EVENTS):
        continue


async def select_of_thread(session: Session, key: Key) -> tuple[OwnedEvent, ...]:
    """Return all events of a thread or shared log."""
    return (await _read_events(session, None, [key], None, MAX_EVENTS))[2]


async def select_of_tenant(session: Session, tenant: str) -> tuple[OwnedEvent, ...]:
    return (await _read_events(session, tenant, None, None, MAX_EVENTS))[2]


async def erase_texts(changes: Changes, keys: Iterable[Key]) -> None:
    """Take the words of a conversation out of the events of these, which keep their places."""
    name = changes.names.of_store("event_data")
    for key in keys:
        for event in await select_of_thread(changes.session, key):
            without = event.event.without_texts()
            if without != event.event:
                changes.replace_field(name, event.id, encode_sealed_event(key, without))


async def remove_from_log(changes: Changes, log: Key, thread: str) -> int:
    """Take a thread out of the events of the log that it shared, and all texts with it. Return how
    many go."""
    name = changes.names.of_store("event_data")
    stored = await select_of_thread(changes.session, log)
    await erase_texts(changes, [log])
    plain = {one.id: one.event.without_texts() for one in stored}
    removal = remove_thread([(id_, e.type, e.data) for id_, e in plain.items()], thread)
    for id_, data in removal.changed:
        changes.replace_field(name, id_, encode_sealed_event(log, plain[id_]._replace(data=data)))
    for id_ in removal.deleted:
        changes.drop_event(id_)
    return len(removal.deleted)


# ── webhooks ──


async def select_webhook(session: Session, name: str) -> WebhookState | None:
    found = await session.call("HGET", session.keys.of_store("webhooks"), name)
    return None if found is None else _decode_webhook(found)


async def set_webhook(session: Session, name: str, state: WebhookState) -> None:
    await session.run("webhook", name, state.cursor, _encode_webhook(state))


def _encode_webhook(state: WebhookState) -> bytes:
    """Begin with the cursor as a number, which the script compares."""
    return b"%d " % state.cursor + encode(tuple(state))


def _decode_webhook(data: bytes) -> WebhookState:
    values: Any = decode_row(data.split(b" ", 1)[1])
    return WebhookState(*values)
