"""Write a whole thread as another store had it, or move a resource to another tenant: its threads, their
shared log, and all that is keyed by tenant. Each goes as a whole or not at all, by one script."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.encoding import decode_state, open_others, replace_views
from om_proxy.storage.encryption.keyring import CommitKeys
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.changes import Changes, read_resource, try_until_applied
from om_proxy.storage.redis.events import select_of_tenant, select_of_thread
from om_proxy.storage.redis.listing import select_resource_names
from om_proxy.storage.redis.queries import select_thread_rows
from om_proxy.storage.redis.record_keeping import add_moved_records
from om_proxy.storage.redis.rows import encode_sealed_event
from om_proxy.storage.redis.session import Session, pair_fields
from om_proxy.storage.shared.difference import PlacedMessage
from om_proxy.storage.shared.event_encoding import reseal_event
from om_proxy.storage.shared.rekeying import (
    SAME_NAME_CAME,
    MessageIdentity,
    MovingResource,
    ResourceRekeying,
    ThreadRekeying,
)
from om_proxy.storage.values.changes import MoveResult, WrittenRow
from om_proxy.storage.values.stored_rows import MessageState, WholeThread


class Restoration:
    """The rows of a whole thread. Texts are encrypted before a connection is taken."""

    def __init__(
        self, thread: WholeThread, over: int, keys: CommitKeys, *, keeps_row: bool
    ) -> None:
        self._thread = thread
        self._key = thread.memory.key
        self._over = over
        self._keeps_row = keeps_row
        self._keys = keys
        cipher = keys.ciphers.row
        self._row = rows.create_thread_row(thread.memory, keys.ciphers)
        placed = [PlacedMessage(stored.message, stored.parent) for stored in thread.messages]
        self._marks, self._texts = rows.encode_messages(placed, cipher)
        self._notes = {
            entry.id: rows.encode_observation(entry, cipher) for entry, _ in thread.observations
        }

    async def write(self, session: Session) -> WrittenRow:
        """Write everything. Raise `Conflict` if another state is stored."""
        changes = Changes(session)
        changes.expect_version(self._key, self._over)
        if self._over:
            changes.delete_thread(self._key)
            changes.ask_for_erasure()
        self._add_row(changes)
        self._add_messages(changes)
        self._add_notes(changes)
        applied = await changes.apply()
        if applied.failed is not None:
            raise Conflict(f"thread {self._key.thread}: another state of it is stored")
        return applied.rows[0]

    def _add_row(self, changes: Changes) -> None:
        thread, memory = self._thread, self._thread.memory
        row = changes.names.of_thread("row", self._key)
        if thread.created_at is not None:
            changes.call("HSET", row, "created_at", thread.created_at)
        if self._keeps_row:
            changes.call("HSET", row, "id", memory.row_id)
        changes.add_keys(self._keys.new_keys)
        changes.write_row(self._key, self._row, memory.due_at, is_rewound=True)
        if thread.delivered_seq is not None:
            changes.call("HSET", row, "delivered", thread.delivered_seq)
        if memory.log.reflection:
            reflection = rows.encode_reflection(memory.log.reflection, self._keys.ciphers.row)
            changes.call("HSET", row, "reflection", reflection)

    def _add_messages(self, changes: Changes) -> None:
        messages = self._thread.messages
        changes.set_marks(self._key, self._marks)
        changes.set_fields(changes.names.of_thread("texts", self._key), self._texts)
        states: Sequence[MessageState] = ("live", "superseded", "interrupted")
        for state in states:
            seqs = [stored.message.seq for stored in messages if stored.state == state]
            scored = [number for seq in seqs for number in (seq, seq)]
            changes.call_in_parts(("ZADD", changes.names.of_thread(state, self._key)), scored)

    def _add_notes(self, changes: Changes) -> None:
        names, thread = changes.names, self._thread
        changes.set_fields(names.of_thread("notes", self._key), self._notes)
        for entry, state in thread.observations:
            if state == "chunk":
                changes.call("ZADD", names.of_thread("chunks", self._key), entry.last, entry.id)
        logs = {one.number: rows.encode_ids(one.entries) for one in thread.generations}
        changes.set_fields(names.of_thread("generations", self._key), logs)
        beginnings = {
            number: rows.encode(tuple(began)) for number, began in thread.beginnings.items()
        }
        changes.set_fields(names.of_thread("beginnings", self._key), beginnings)


# ── to another tenant ──

MESSAGES_PER_PAGE = 1_000


async def count_name_conflicts(session: Session, old: str, new: str) -> int:
    """Return the number of threads and shared logs that both tenants have."""
    count = 0
    for name in await select_resource_names(session, old):
        ours = await read_resource(session, old, name)
        theirs = await read_resource(session, new, name)
        count += len(ours.threads.keys() & theirs.threads.keys())
    return count


class ResourceMove:
    """The move of one resource. The result counts what moved."""

    def __init__(self, resource: MovingResource) -> None:
        self._resource = resource

    async def __call__(self, session: Session) -> MoveResult:
        return await try_until_applied(lambda: self._try_move(session))

    async def _try_move(self, session: Session) -> MoveResult | None:
        state = await read_resource(session, self._resource.old, self._resource.name)
        target = await read_resource(session, self._resource.new, self._resource.name)
        if state.threads.keys() & target.threads.keys():
            raise StorageError(SAME_NAME_CAME)
        changes = Changes(session)
        changes.expect_revision(self._resource.old, self._resource.name, state.revision)
        changes.expect_revision(self._resource.new, self._resource.name, target.revision)
        # the shared log comes last: its entries name the chains of the others
        names = sorted(state.threads, key=lambda name: (name == RESOURCE_THREAD, name))
        rekeying = self._resource.rekey(names)
        message_count = 0
        for name in names:
            message_count += await self._move_thread(changes, rekeying, name)
        changes.drop_leases(self._resource.old, self._resource.name)
        changes.move_ledger(self._resource.old, self._resource.name, self._resource.new)
        labels = self._resource.map_labels(state.threads)
        await add_moved_records(changes, self._resource.old, self._resource.new, labels)
        if (await changes.apply()).failed is not None:
            return None
        return self._resource.count_moved(names, message_count)

    async def _move_thread(self, changes: Changes, rekeying: ResourceRekeying, name: str) -> int:
        """Add the steps that move one thread. Return the number of its messages."""
        old_key = Key(self._resource.old, self._resource.name, name)
        new_key = old_key._replace(tenant=self._resource.new)
        stored = await select_thread_rows(changes.session, [old_key])
        _, row, due = stored[old_key]
        held = await changes.session.keyring.hold(changes.session, [row.key_id, row.others_key_id])
        ciphers = held.find_thread(row.key_id, row.others)
        cipher = ciphers.row
        marks, messages = await self._select_messages(changes.session, old_key, cipher)
        thread = rekeying.rekey_thread(name, messages)
        changes.move_thread(old_key, self._resource.new)
        moved_marks = {
            # kept look-ups name threads by their old labels
            seq: rows.encode((seq, fp, chain, *rows.decode_row(rows.drop_look_ups(marks[seq]))[3:]))
            for seq, fp, chain in thread.list_message_keys()
        }
        changes.set_fields(changes.names.of_thread("marks", new_key), moved_marks)
        await _move_notes(changes, old_key, new_key, thread, cipher)
        await self._move_events(changes, rekeying, old_key, new_key, cipher)
        state = decode_state(row.state, cipher)
        moved_row = msgspec.structs.replace(
            row,
            others=rows.ENCODER.encode_others(
                rekeying.relabel(open_others(ciphers, row.others)), ciphers
            ),
            state=replace_views(state, thread.rekey_views(state.views), cipher),
        )
        changes.write_row(new_key, moved_row, due, is_rewound=True)
        return len(messages)

    async def _select_messages(
        self, session: Session, key: Key, cipher: RowCipher
    ) -> tuple[dict[int, bytes], list[MessageIdentity]]:
        """Return the marks of all messages by seq, and what their keys are made from; their texts
        only page by page."""
        marks: dict[int, bytes] = {}
        messages: list[MessageIdentity] = []
        last_seq, count = 0, MESSAGES_PER_PAGE
        while count == MESSAGES_PER_PAGE:
            states, page, texts, _ = await session.run(
                "messages", *key, last_seq, "+inf", MESSAGES_PER_PAGE, 1, 1
            )
            for state, mark, sealed in zip(states, page, texts, strict=True):
                seq, fp, chain = rows.decode_row(mark)[:3]
                parent = rows.decode_parent(mark)
                raw = cipher.open(b"message", seq, b"raw", sealed)
                api = rows.read_api(mark)
                messages.append(
                    self._resource.identify(seq, parent, int(state), fp, chain, raw, api)
                )
                marks[seq] = mark
            count = len(page)
            last_seq = messages[-1].seq if messages else 0
        return marks, messages

    async def _move_events(
        self,
        changes: Changes,
        rekeying: ResourceRekeying,
        old_key: Key,
        new_key: Key,
        cipher: RowCipher,
    ) -> None:
        name = changes.names.of_store("event_data")

        relabel = self._resource.create_event_relabeler(rekeying)
        for one in await select_of_thread(changes.session, old_key):
            event = reseal_event(one.event, cipher, cipher, relabel)
            changes.replace_field(name, one.id, encode_sealed_event(new_key, event))


async def _move_notes(
    changes: Changes,
    old_key: Key,
    new_key: Key,
    thread: ThreadRekeying,
    cipher: RowCipher,
) -> None:
    found = await changes.session.call("HGETALL", changes.names.of_thread("notes", old_key))
    notes = {
        int(id_): rows.encode_observation(
            thread.rekey_observation(rows.decode_observation(data, cipher)), cipher
        )
        for id_, data in pair_fields(found)
    }
    changes.set_fields(changes.names.of_thread("notes", new_key), notes)
    reflection = await changes.session.call(
        "HGET", changes.names.of_thread("row", old_key), "reflection"
    )
    if reflection is not None:
        moved = thread.rekey_reflection(rows.decode_reflection(reflection, cipher))
        row_name = changes.names.of_thread("row", new_key)
        changes.call("HSET", row_name, "reflection", rows.encode_reflection(moved, cipher))


async def move_rest(session: Session, old: str, new: str) -> None:
    """Move what belongs to no resource any more: the nameless lines of the ledger, events of
    forgotten threads, and records about them."""
    changes = Changes(session)
    changes.move_ledger(old, "", new)
    names = session.keys
    nameless = Key(new, "", "")
    for event in await select_of_tenant(session, old):
        if not event.key.resource:
            data = encode_sealed_event(nameless, event.event)
            changes.replace_field(names.of_store("event_data"), event.id, data)
            changes.call("ZREM", names.of_tenant("events", old), event.id)
            changes.call("ZADD", names.of_tenant("events", new), event.id, event.id)
    await add_moved_records(changes, old, new, None)
    await changes.apply()
