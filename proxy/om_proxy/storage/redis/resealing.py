"""Encrypt all rows of a memory with another data key, as steps of one script. The memory's own row,
which names the key, is the caller's to write after them."""

from __future__ import annotations

from om_proxy.memory.model import Key
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.event_rows import encode_sealed_event
from om_proxy.storage.redis.events import select_of_thread
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared.event_encoding import reseal_event


async def add_resealed_rows(
    session: Session, changes: Changes, key: Key, old: RowCipher, new: RowCipher
) -> None:
    """Add the steps that write messages, notes, the pending reflection and events of a memory anew.
    The caller's condition tells whether what is read here stands."""
    names = session.keys
    marks, texts, notes, reflection = await session.call_many(
        [
            ("HGETALL", names.of_thread("marks", key)),
            ("HGETALL", names.of_thread("texts", key)),
            ("HGETALL", names.of_thread("notes", key)),
            ("HGET", names.of_thread("row", key), "reflection"),
        ]
    )
    changes.set_fields(
        names.of_thread("marks", key),
        {
            int(seq): resealed
            for seq, mark in zip(marks[::2], marks[1::2], strict=True)
            if (resealed := rows.reseal_mark(mark, old, new)) is not None
        },
    )
    changes.set_fields(
        names.of_thread("texts", key),
        {
            int(seq): new.seal(
                b"message", int(seq), b"raw", old.open(b"message", int(seq), b"raw", raw)
            )
            for seq, raw in zip(texts[::2], texts[1::2], strict=True)
        },
    )
    changes.set_fields(
        names.of_thread("notes", key),
        {
            int(id_): rows.encode_observation(rows.decode_observation(data, old), new)
            for id_, data in zip(notes[::2], notes[1::2], strict=True)
        },
    )
    if reflection is not None:
        resealed = rows.encode_reflection(rows.decode_reflection(reflection, old), new)
        changes.call("HSET", names.of_thread("row", key), "reflection", resealed)
    for one in await select_of_thread(session, key):
        event = reseal_event(one.event, old, new)
        data = encode_sealed_event(key, event)
        changes.replace_field(names.of_store("event_data"), one.id, data)
