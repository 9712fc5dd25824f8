"""Encode the parts of a memory as the columns that `row_decoding` decodes."""

from __future__ import annotations

import json
from collections.abc import Callable

from om_proxy.memory.model import Memory, Observation, Reflection
from om_proxy.storage.encoding import (
    encode_api,
    encode_calls,
    encode_origin,
    encode_parts,
    encode_state,
    find_stored_others,
    seal_look_ups,
    seal_others,
    seal_text,
    sum_for_resource,
)
from om_proxy.storage.encryption.row_cipher import RowCipher, ThreadCiphers
from om_proxy.storage.shared.difference import PlacedMessage
from om_proxy.storage.shared.row_decoding import NOTE, REFLECTION, Row
from om_proxy.storage.values.stored_rows import ObservationState

Text = str | bytes


class RowEncoder:
    """Encodes rows for one kind of database. `encode_text` returns a text from outside as the
    database holds it."""

    def __init__(self, encode_text: Callable[[str], Text]) -> None:
        self.encode_text = encode_text

    def encode_optional_text(self, text: str | None) -> Text | None:
        return None if text is None else self.encode_text(text)

    def _protect(
        self, cipher: RowCipher, table: bytes, row: int, column: bytes, text: str | None
    ) -> Text | None:
        """Return a text of a conversation as its memory stores it."""
        if cipher.key_id is None:
            return self.encode_optional_text(text)
        return seal_text(cipher, table, row, column, text)

    def encode_others(self, text: str, ciphers: ThreadCiphers) -> Text:
        """Return the column `others`."""
        if not text or ciphers.row.key_id is None:
            return self.encode_text(text)
        return seal_others(ciphers, text)

    def encode_notes(self, entry: Observation, cipher: RowCipher) -> Row:
        """Return the columns text, task, suggestion and title of an entry."""
        return (
            self._protect(cipher, NOTE, entry.id, b"text", entry.text),
            self._protect(cipher, NOTE, entry.id, b"task", entry.task),
            self._protect(cipher, NOTE, entry.id, b"suggestion", entry.suggestion),
            self._protect(cipher, NOTE, entry.id, b"title", entry.title),
        )

    def encode_reflection_texts(self, reflection: Reflection, cipher: RowCipher) -> Row:
        """Return the columns text, task and suggestion of a reflection."""
        number = reflection.generation
        return (
            self._protect(cipher, REFLECTION, number, b"text", reflection.text),
            self._protect(cipher, REFLECTION, number, b"task", reflection.task),
            self._protect(cipher, REFLECTION, number, b"suggestion", reflection.suggestion),
        )

    def encode_thread(self, memory: Memory, ciphers: ThreadCiphers, *, writes_others: bool) -> Row:
        """Return the columns `row_decoding.THREAD_COLUMNS`. `writes_others`: whether the text about
        other threads is to be stored anew; else its column is none of the commit."""
        others = find_stored_others(memory)
        return (
            memory.next_seq,
            memory.next_id,
            memory.log.generation,
            memory.log.next_generation,
            memory.coverage,
            memory.covered_count,
            memory.covered_tokens,
            memory.count,
            memory.turn_at,
            memory.due_at,
            memory.needs_caller,
            memory.failures.count,
            memory.failures.retry_at,
            memory.failures.suspended,
            self.encode_optional_text(memory.model),
            self._protect(ciphers.row, b"thread", 0, b"title", memory.title),
            memory.scope == "resource",
            *sum_for_resource(memory),
            self.encode_others(others, ciphers) if writes_others else None,
            ciphers.row.key_id,
            encode_state(memory, ciphers.row),
        )

    def encode_message(self, placed: PlacedMessage, live: int, cipher: RowCipher) -> Row:
        """Return seq, live (`LIVE` or `INTERRUPTED`), parent, then the columns after `seq` of
        `row_decoding.MESSAGE_COLUMNS`."""
        message, item = placed.message, placed.message.item
        return (
            message.seq,
            live,
            placed.parent,
            item.fp,
            message.chain,
            self.encode_text(item.role),
            self.encode_optional_text(encode_calls(item.calls)),
            self.encode_optional_text(item.answers),
            message.tokens,
            message.at,
            message.encoding,
            cipher.seal(b"message", message.seq, b"raw", item.raw),
            seal_look_ups(cipher, message),
            encode_api(item.api),
            encode_origin(item.origin),
        )

    def encode_observation(
        self, entry: Observation, state: ObservationState, cipher: RowCipher
    ) -> Row:
        """Return id, state, then the columns after `id` of `row_decoding.OBSERVATION_COLUMNS`."""
        text, *hints = self.encode_notes(entry, cipher)
        return (
            entry.id,
            state,
            entry.after,
            entry.last,
            entry.chain,
            text,
            entry.tokens,
            entry.source_tokens,
            entry.at,
            *hints,
            entry.kind,
            self.encode_text(entry.model),
            encode_parts(entry.parts),
            json.dumps(entry.sources) if entry.sources else None,
            entry.depth,
            entry.replaces,
        )

    def encode_reflection(self, reflection: Reflection, cipher: RowCipher) -> Row:
        """Return the columns `row_decoding.REFLECTION_COLUMNS`."""
        text, *hints = self.encode_reflection_texts(reflection, cipher)
        return (
            reflection.generation,
            json.dumps(reflection.sources),
            text,
            reflection.tokens,
            reflection.source_tokens,
            reflection.at,
            *hints,
            self.encode_text(reflection.model),
        )
