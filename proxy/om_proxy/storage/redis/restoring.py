"""Write a whole thread as another store had it, by one script."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.common.errors import Conflict
from om_proxy.storage.encoding import find_stored_others
from om_proxy.storage.encryption.keyring import CommitKeys
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.removal import ask_for_erasure
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared.difference import PlacedMessage
from om_proxy.storage.values.changes import WrittenRow
from om_proxy.storage.values.stored_rows import MessageState, StoredMessage, WholeThread


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
        others = rows.encode_others(find_stored_others(thread.memory), keys.ciphers)
        self._row = rows.create_thread_row(thread.memory, cipher, others)
        self._marks = {
            stored.message.seq: _encode_mark(stored, cipher) for stored in thread.messages
        }
        self._texts = {
            seq: rows.seal_raw(seq, raw, cipher)
            for seq, raw in ((one.message.seq, one.message.item.raw) for one in thread.messages)
        }
        self._notes = {
            entry.id: rows.encode_observation(entry, cipher) for entry, _ in thread.observations
        }

    async def write(self, session: Session) -> WrittenRow:
        """Write everything. Raise `Conflict` if another state is stored."""
        changes = Changes()
        changes.expect_version(self._key, self._over)
        if self._over:
            changes.delete_thread(self._key)
            ask_for_erasure(session, changes)
        self._add_row(session, changes)
        self._add_messages(session, changes)
        self._add_notes(session, changes)
        applied = await changes.apply(session)
        if applied.failed is not None:
            raise Conflict(f"thread {self._key.thread}: another state of it is stored")
        return applied.rows[0]

    def _add_row(self, session: Session, changes: Changes) -> None:
        thread, memory = self._thread, self._thread.memory
        row = session.keys.of_thread("row", self._key)
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

    def _add_messages(self, session: Session, changes: Changes) -> None:
        messages = self._thread.messages
        changes.set_marks(session, self._key, self._marks)
        changes.set_fields(session.keys.of_thread("texts", self._key), self._texts)
        states: Sequence[MessageState] = ("live", "superseded", "interrupted")
        for state in states:
            seqs = [stored.message.seq for stored in messages if stored.state == state]
            scored = [number for seq in seqs for number in (seq, seq)]
            changes.call_in_parts(("ZADD", session.keys.of_thread(state, self._key)), scored)

    def _add_notes(self, session: Session, changes: Changes) -> None:
        names, thread = session.keys, self._thread
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


def _encode_mark(stored: StoredMessage, cipher: RowCipher) -> bytes:
    return rows.encode_mark(PlacedMessage(stored.message, stored.parent), cipher)
