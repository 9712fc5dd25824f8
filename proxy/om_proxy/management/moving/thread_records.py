"""Read the records of an export back into threads
(docs/contributing/storage.md#export-and-import)."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import orjson
from msgspec.structs import replace

from om_proxy.common.errors import UsageError
from om_proxy.management.memory_export import API_FORMAT, EXPORT_FORMAT, LOG_RECORDS, OWN_RECORDS
from om_proxy.management.moving.value_decoding import (
    Record,
    ValueDecoder,
    decode_text,
    find_field_types,
)
from om_proxy.memory.model import (
    RECENT_MARKS,
    RESOURCE_THREAD,
    Beginning,
    Item,
    Key,
    Memory,
    Message,
    Observation,
    ObservationLog,
    Pin,
    Reflection,
)
from om_proxy.memory.value_bounds import Name, Number, PastSeconds
from om_proxy.settings.identity.naming import normalize_name
from om_proxy.storage.encoding import decode_raw
from om_proxy.storage.values.stored_rows import (
    GenerationEntries,
    MessageState,
    ObservationState,
    StoredMessage,
    StoredObservation,
    WholeThread,
)

SECRET_FORM = re.compile(r"[0-9a-fA-F]{64}")
WHAT_TO_GIVE = (
    "give what `om-proxy export` has written; `om-proxy import --from` reads the histories of other "
    "programs"
)
# what somebody may take for an export, by its first bytes
OTHER_FILES = {
    b"\x1f\x8b": "this is compressed with gzip: unpack it first",
    b"\x28\xb5\x2f\xfd": "this is compressed with zstd: unpack it first",
    b"SQLite format 3\0": "this is an SQLite database: `om-proxy store copy` copies one into another store",
}
_BEGINNING = Beginning | None
_IDS = tuple[Number, ...]
_SECONDS = PastSeconds | None
_SEQ = Number | None
_Note = TypeVar("_Note", Reflection, Pin)
_Part = TypeVar("_Part")
_THREAD_ONLY = frozenset(("om", "log", "delivered_seq", "created_at", "label", *Key._fields))


class ExportHeader(NamedTuple):
    """The first record of an export."""

    secret: bytes | None  # of the store that it comes from; None: it does not say


class LaterFormat(NamedTuple):
    """What follows in this export is of `API_FORMAT`."""


class ExportEnd(NamedTuple):
    """The last record: without it, an export is not whole."""

    threads: int


class ForgottenThread(NamedTuple):
    """Earlier records of this thread do not count."""

    key: Key


class ThreadHead(NamedTuple):
    """A thread without what has records of its own."""

    memory: Memory
    label: str  # under the secret of the store that it comes from
    created_at: float | None
    delivered_seq: int | None


class GenerationRecord(NamedTuple):
    """One generation of the log: the ids of its entries, and why it began, as far as that is known."""

    number: int
    entries: tuple[int, ...]
    began: Beginning | None


Decoded = (
    ExportHeader
    | LaterFormat
    | ExportEnd
    | ForgottenThread
    | ThreadHead
    | StoredMessage
    | StoredObservation
    | GenerationRecord
    | Reflection
    | Pin
)


class RecordDecoder:
    """Reads the lines of an export."""

    def __init__(self, now: float = math.inf) -> None:
        self._values = ValueDecoder(now)

    @property
    def unknown_fields(self) -> set[str]:
        return self._values.unknown_fields

    def decode(self, line: bytes) -> Decoded:
        """Return what the line says. Raise UsageError if it is no record of this format."""
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            if line.startswith(b"{") and not line.endswith(b"\n"):
                raise UsageError(
                    "the export breaks off in this line, so a part is missing; export it again"
                ) from exc
            raise UsageError(f"this is no JSON ({exc})") from exc
        if not isinstance(record, dict):
            raise UsageError("this is no JSON object")
        match record.get("om"):
            case "export":
                return _read_header(record)
            case "thread":
                return self._read_head(record)
            case "forgotten":
                return ForgottenThread(_read_key(record))
            case "end":
                return ExportEnd(self._read(record, "threads", Number))
        return self._read_part(record)

    def _read_part(self, record: Record) -> Decoded:
        """Return what a record after its thread's says."""
        match record.get("om"):
            case "message":
                return self._read_message(record)
            case "observation":
                also = frozenset(("om", "state"))
                entry = self._values.build(Observation, record, "observation", also)
                return StoredObservation(entry, self._read(record, "state", ObservationState))
            case "generation":
                return GenerationRecord(
                    self._read(record, "number", Number),
                    self._read(record, "entries", _IDS),
                    self._read(record, "began", _BEGINNING),
                )
            case "reflection":
                return self._read_note(Reflection, record)
            case "pin":
                return self._read_note(Pin, record)
            case kind:
                raise UsageError(
                    f"no record of an export is of the kind {reprlib.repr(kind)}: {WHAT_TO_GIVE}"
                )

    def _read_note(self, as_type: type[_Note], record: Record) -> _Note:
        built: _Note = self._values.build(as_type, record, record["om"], frozenset(("om",)))
        return built

    def _read(self, record: Record, name: str, as_type: Any) -> Any:
        return self._values.decode(record.get(name), as_type, f"{record['om']}.{name}")

    def _read_head(self, record: Record) -> ThreadHead:
        of_records: dict[str, Any] = dict.fromkeys(LOG_RECORDS, ())
        log = self._values.build(
            ObservationLog, record.get("log"), "thread.log", frozenset(), **of_records
        )
        own = dict.fromkeys(OWN_RECORDS)
        memory = self._values.build(
            Memory,
            {name: value for name, value in record.items() if name not in own},
            "thread",
            _THREAD_ONLY,
            key=_read_key(record),
            log=replace(log, reflection=None),
        )
        return ThreadHead(
            memory,
            self._read(record, "label", Name),
            self._read(record, "created_at", _SECONDS),
            self._read(record, "delivered_seq", _SEQ),
        )

    def _read_message(self, record: Record) -> StoredMessage:
        # an export leaves the origin out, and an import's is not trusted
        item_fields = frozenset(find_field_types(Item)) - {"origin"}
        item = self._values.build(
            Item, {name: record[name] for name in item_fields if name in record}, "message"
        )
        item = replace(item, raw=decode_raw(item.raw))
        also = frozenset(("om", "state", "parent")) | item_fields
        message = self._values.build(Message, record, "message", also, item=item)
        state = self._read(record, "state", MessageState)
        return StoredMessage(message, self._read(record, "parent", Number), state)


def _read_header(record: Record) -> ExportHeader | LaterFormat:
    if record.get("format") == API_FORMAT:
        return LaterFormat()
    if record.get("format") != EXPORT_FORMAT:
        raise UsageError(
            f"this export has format {reprlib.repr(record.get('format'))}, and this release reads formats "
            f"{EXPORT_FORMAT} and {API_FORMAT}; use a newer release"
        )
    secret = record.get("secret")
    if secret is None:
        return ExportHeader(None)
    if not isinstance(secret, str) or not SECRET_FORM.fullmatch(secret):
        raise UsageError("export.secret must be 32 bytes in hexadecimal")
    return ExportHeader(bytes.fromhex(secret))


def _read_key(record: Record) -> Key:
    key = Key(*(str(decode_text(record.get(name), str, f"thread.{name}")) for name in Key._fields))
    for field_name, name in zip(Key._fields, key, strict=True):
        is_log = field_name == "thread" and not name
        if not is_log and normalize_name(name) != name:
            raise UsageError(f"thread.{field_name} is no name that a client could send")
    return key


@dataclass(slots=True)
class ThreadParts:
    """The records of one thread, as they come."""

    head: ThreadHead
    records: list[Decoded] = field(default_factory=list)

    def join(self) -> WholeThread:
        """Return the thread. Raise UsageError if its records contradict each other."""
        head, memory = self.head, self.head.memory
        messages, generations = self._select(StoredMessage), self._select(GenerationRecord)
        _require_numbers(memory, messages)
        reflection = next(reversed(self._select(Reflection)), None)  # the last one counts
        whole = WholeThread(
            replace(memory, log=replace(memory.log, reflection=reflection, pins=self._select(Pin))),
            messages,
            self._select(StoredObservation),
            tuple(GenerationEntries(g.number, g.entries) for g in generations if g.entries),
            {g.number: g.began for g in generations if g.began},
            head.delivered_seq,
            head.created_at,
        )
        return load_rows(whole)

    def _select(self, kind: type[_Part]) -> tuple[_Part, ...]:
        return tuple(part for part in self.records if isinstance(part, kind))


def _require_numbers(memory: Memory, messages: Sequence[StoredMessage]) -> None:
    """Raise UsageError for numbers of messages that no store would have written."""
    if not 0 <= memory.coverage < memory.next_seq:
        raise UsageError(f"coverage {memory.coverage} is not within 0 to next_seq")
    before = 0
    for stored in messages:
        message = stored.message
        if not before < message.seq < memory.next_seq:
            raise UsageError(f"message {message.seq} is not between {before} and next_seq")
        if not 0 <= stored.parent < message.seq:
            raise UsageError(f"message {message.seq} cannot follow message {stored.parent}")
        before = message.seq


def load_rows(whole: WholeThread) -> WholeThread:
    """Return the thread with a memory that holds what a store would load from its rows. Raise
    UsageError if a generation names an entry that is missing."""
    memory = whole.memory
    live = [stored.message for stored in whole.messages if stored.state == "live"]
    notes = {stored.entry.id: stored.entry for stored in whole.observations}
    entries = {generation.number: generation.entries for generation in whole.generations}
    for missing in {id_ for ids in entries.values() for id_ in ids} - notes.keys():
        raise UsageError(f"the notes hold no entry {missing}, which a generation names")
    chunks = [stored.entry for stored in whole.observations if stored.state == "chunk"]
    log = replace(
        memory.log,
        entries=tuple(notes[id_] for id_ in entries.get(memory.log.generation, ())),
    )
    loaded = replace(
        memory,
        recent=tuple(m.mark for m in live if m.seq <= memory.coverage)[-RECENT_MARKS:],
        tail=tuple(m for m in live if m.seq > memory.coverage),
        log=log,
        chunks=tuple(sorted(chunks, key=_order_of_chunk)),
    )
    return whole._replace(memory=loaded)


def _order_of_chunk(chunk: Observation) -> tuple[int, int]:
    return chunk.last, chunk.id


@contextmanager
def name_place(place: str) -> Iterator[None]:
    """Raise a UsageError with the place that it is about."""
    try:
        yield
    except UsageError as exc:
        raise UsageError(f"{place}: {exc}") from exc


def read_lines(lines: Iterator[bytes], decoder: RecordDecoder) -> Iterator[tuple[int, Decoded]]:
    """Yield each record with the number of its line. Raise UsageError with that number for a broken
    one, and if an export of the file lacks a part."""
    part: Decoded | None = None
    threads: set[Key] = set()  # of the export so far
    number = 0
    for number, line in enumerate(lines, 1):
        _check_first_line(number, line)
        with name_place(f"line {number}"):
            before, part = part, decoder.decode(line)
            _check_place(before, part)
            _count_thread(part, threads)
        yield number, part
    if not number:
        raise UsageError(f"this is empty, so it is no export: {WHAT_TO_GIVE}")
    if not isinstance(part, ExportEnd):
        raise UsageError(
            f"line {number}: the export breaks off here, so a part is missing; export it again"
        )


def _check_first_line(number: int, line: bytes) -> None:
    """Raise UsageError if the first line is that of another file."""
    if number > 1:
        return
    for beginning, said in OTHER_FILES.items():
        if line.startswith(beginning):
            raise UsageError(said)
    if not line.lstrip().startswith((b"{", b"[")):
        kind = "no JSON" if line.strip() else "empty"
        raise UsageError(f"line 1 is {kind}, so it is no export: {WHAT_TO_GIVE}")


def _check_place(before: Decoded | None, part: Decoded) -> None:
    """Raise UsageError if an export does not begin with its header, or not end with its end."""
    is_first = before is None or isinstance(before, ExportEnd)
    is_header = isinstance(part, ExportHeader)
    if is_first and not is_header:
        raise UsageError(f"an export begins with its header: {WHAT_TO_GIVE}")
    if is_header and not is_first:
        raise UsageError(
            "the export before this one breaks off, so a part is missing; export it again"
        )


def _count_thread(part: Decoded, threads: set[Key]) -> None:
    """Raise UsageError if the export has another number of threads than it says."""
    match part:
        case ExportHeader():
            threads.clear()
        case ThreadHead() if part.memory.key.thread != RESOURCE_THREAD:
            threads.add(part.memory.key)
        case ForgottenThread(key=key):
            threads.discard(key)
        case ExportEnd(threads=count) if count != len(threads):
            raise UsageError(
                f"the export says that it has {count} threads, and {len(threads)} stand in it, so "
                "a part is missing; export it again"
            )
