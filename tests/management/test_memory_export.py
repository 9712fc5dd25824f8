"""An export holds everything of a memory: it can be built again from the records alone."""

from __future__ import annotations

import base64
import json
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, NotFound
from om_proxy.management.memory_export import MAX_EXPORT_ATTEMPTS, MemoryExporter, encode_value
from om_proxy.memory.lifecycle.log_sharing import attach_log, is_consistent
from om_proxy.memory.model import (
    RECENT_MARKS,
    Beginning,
    Failures,
    Generation,
    Item,
    Key,
    Memory,
    Message,
    Observation,
    ObservationLog,
    Part,
    Pin,
    Reflection,
    replace_log,
    resource_key,
)
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.stored_rows import StoredMessage
from tests.storage.contract import MOVES, ODD, ODD_TEXTS, Step
from tests.storage.memory_builder import KEY, MemoryBuilder, item, small_things
from tests.storage.shared_machine import SharedStore, share_log

Record = dict[str, Any]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "om.db")
    yield store
    await store.close()


async def collect(records: AsyncIterator[Record]) -> list[Record]:
    """Return the records as a reader gets them: through JSON."""
    return [json.loads(msgspec.json.encode(record)) async for record in records]


# ── building again ──


def decode(value: Any, as_type: Any) -> Any:
    """Return a value of an export as the model has it."""
    origin, args = get_origin(as_type), get_args(as_type)
    if origin in (Union, types.UnionType):
        [inner] = [arg for arg in args if arg is not type(None)]
        return None if value is None else decode(value, inner)
    if as_type in (bytes, str):
        is_encoded = isinstance(value, dict)
        data = base64.b64decode(value["base64"]) if is_encoded else value.encode()
        return data if as_type is bytes else data.decode("utf-8", "surrogatepass")
    if origin is tuple:
        if args[-1] is Ellipsis:
            return tuple(decode(one, args[0]) for one in value)
        return tuple(decode(one, arg) for one, arg in zip(value, args, strict=True))
    if isinstance(as_type, type) and issubclass(as_type, Struct | tuple):
        return build(as_type, value)
    return value


def build(as_type: Any, record: Record, **more: Any) -> Any:
    """Build a struct or a named tuple from the fields of a record that it has."""
    hints = get_type_hints(as_type)
    names = getattr(as_type, "__struct_fields__", None) or as_type._fields
    fields = {name: decode(record[name], hints[name]) for name in names if name in record}
    return as_type(**fields, **more)


class Rebuilt:
    """One thread of an export."""

    def __init__(self, records: Sequence[Record]) -> None:
        kinds: dict[str, list[Record]] = {}
        for record in records:
            kinds.setdefault(record["om"], []).append(record)
        self.thread = kinds["thread"][-1]
        self.messages = [build_message(one) for one in kinds.get("message", [])]
        self.states = {one["id"]: one["state"] for one in kinds.get("observation", [])}
        self.entries = {one["id"]: build(Observation, one) for one in kinds.get("observation", [])}
        self.generations = {
            one["number"]: tuple(self.entries[id_] for id_ in one["entries"])
            for one in kinds.get("generation", [])
        }
        self.beginnings = {
            one["number"]: build(Beginning, one["began"])
            for one in kinds.get("generation", [])
            if one["began"]
        }
        reflections = [build(Reflection, one) for one in kinds.get("reflection", [])]
        self.reflection = reflections[0] if reflections else None
        self.pins = tuple(build(Pin, one) for one in kinds.get("pin", []))

    def memory(self, version: int, row_id: int) -> Memory:
        """Return the memory as a store would load it."""
        thread = self.thread
        live = [stored.message for stored in self.messages if stored.state == "live"]
        chunks = [entry for id_, entry in self.entries.items() if self.states[id_] == "chunk"]
        log = build(
            ObservationLog,
            thread["log"],
            entries=self.generations.get(thread["log"]["generation"], ()),
            reflection=self.reflection,
            pins=self.pins,
        )
        return build(  # type: ignore[no-any-return] # it builds what it is told to
            Memory,
            {name: value for name, value in thread.items() if name != "log"},
            key=Key(*(decode(thread[name], str) for name in Key._fields)),
            version=version,
            row_id=row_id,
            recent=tuple(m.mark for m in live if m.seq <= thread["coverage"])[-RECENT_MARKS:],
            tail=tuple(m for m in live if m.seq > thread["coverage"]),
            log=log,
            chunks=tuple(sorted(chunks, key=lambda o: (o.last, o.id))),
        )

    def older_generations(self) -> tuple[Generation, ...]:
        numbers = sorted(
            (n for n in self.generations if n < self.thread["log"]["generation"]), reverse=True
        )
        return tuple(Generation(n, self.generations[n]) for n in numbers)


def build_message(record: Record) -> StoredMessage:
    message = build(Message, record, item=build(Item, record))
    return StoredMessage(message, record["parent"], record["state"])


def split_threads(records: Iterable[Record]) -> dict[Key, Rebuilt]:
    """Return the threads of an export. The last `thread` record of a name counts."""
    parts: dict[Key, list[Record]] = {}
    current: list[Record] = []
    for record in records:
        if record["om"] == "thread":
            key = Key(*(decode(record[name], str) for name in Key._fields))
            current = parts[key] = []
        current.append(record)
    return {key: Rebuilt(part) for key, part in parts.items()}


async def compare(store: Store, rebuilt: Rebuilt, key: Key) -> None:
    memory = await store.load(key)
    assert rebuilt.memory(memory.version, memory.row_id) == memory
    assert tuple(rebuilt.messages) == await store.stored_messages(key, 0, limit=1_000)
    assert rebuilt.older_generations() == await store.generations(key, memory.log.generation)
    beginnings = await store.beginnings(key)
    kept = {number: b for number, b in beginnings.items() if number in rebuilt.generations}
    assert rebuilt.beginnings == kept
    assert rebuilt.thread["delivered_seq"] == await store.delivered_reply(key)


# ── tests ──


@pytest.mark.parametrize("steps", MOVES.values(), ids=MOVES)
async def test_a_memory_is_built_again(store: SqliteStore, steps: Sequence[Step]) -> None:
    builder, memory = MemoryBuilder(), Memory(key=KEY)
    for step in steps:
        step(builder)
        broken = builder.interrupt_reply(item("broken", "assistant"))
        builder.more = small_things() | {"failures": Failures(2, 9.5, False, "observe om_cut_off")}
        memory = await store.commit(memory, builder.memory(memory.version), [broken])
    pins = (Pin(1, "Keep it short.", 4, 1.5, "admin"), Pin(2, "é", 4, 2.5, "t"))
    memory = await store.commit(memory, replace_log(memory, pins=pins))
    await store.mark_delivered({KEY: 2})
    records = await collect(MemoryExporter(store).export_thread(KEY))
    assert records[0] == {"om": "export", "format": 1, "secret": None}
    assert records[-1] == {"om": "end", "threads": 1}
    [(key, rebuilt)] = split_threads(records[1:-1]).items()
    assert key == KEY
    await compare(store, rebuilt, KEY)


async def test_every_field_of_a_memory_is_exported(store: SqliteStore) -> None:
    """A new field is in an export by itself; what is kept apart has records of its own."""
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
    records = await collect(MemoryExporter(store).export_thread(KEY))
    apart = {"key", "version", "row_id", "recent", "tail", "chunks", "shared_log_ref", "put_aside"}
    assert set(Memory.__struct_fields__) - set(records[1]) == apart
    assert set(ObservationLog.__struct_fields__) - set(records[1]["log"]) == {
        "entries",
        "reflection",
        "pins",
    }


@pytest.mark.parametrize("odd", [*ODD.values(), *ODD_TEXTS.values()])
async def test_whatever_was_said_comes_back(store: SqliteStore, odd: str | bytes) -> None:
    thread = MemoryBuilder()
    raw = odd if isinstance(odd, bytes) else odd.encode("utf-8", "surrogatepass")
    text = odd if isinstance(odd, str) else "text"
    said = replace(item("x", text, calls=(text,), answers=text), raw=raw)
    memory = await store.commit(Memory(key=KEY), thread.say(said).memory())
    thread.more = {"title": text, "model": text, "overrides": raw}
    thread.cover(1).chunks = ()
    thread.log = tuple(replace(o, text=text, task=text, title=text) for o in thread.log)
    await store.commit(memory, thread.memory(memory.version))
    records = await collect(MemoryExporter(store).export_thread(KEY))
    await compare(store, split_threads(records[1:-1])[KEY], KEY)


async def test_threads_that_share_a_log(store: SqliteStore) -> None:
    """The log comes before its threads, and is built again as it is stored."""
    log_key = resource_key(KEY)
    entry = MemoryBuilder(log_key).chat(2).cover(2).log[0]
    entry = replace(entry, parts=(Part("label", 0, 2, b"\xff" * 16, "task", None, 2.0),))
    log = Memory(key=log_key, next_id=entry.id + 1, log=ObservationLog(entries=(entry,)), turns=3)
    shared = Change(Memory(key=log_key), log)
    other = Key("stranger", KEY.resource, KEY.thread)
    keys = [KEY._replace(thread=name) for name in ("b", "a")]
    for key in keys:
        thread = replace(MemoryBuilder(key).chat(3).memory(), scope="resource")
        await store.commit_shared(Change(Memory(key=key), thread), shared)
        stored = await store.load(log_key)
        shared = Change(stored, stored)
    for key in (other, Key(KEY.tenant, "another", "c")):
        await store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
    exporter = MemoryExporter(store)
    records = await collect(exporter.export_all(KEY.tenant, KEY.resource))
    threads = split_threads(records[1:-1])
    assert list(threads) == [log_key, *sorted(keys)]
    for key, rebuilt in threads.items():
        await compare(store, rebuilt, key)
    assert records[-1] == {"om": "end", "threads": 2}
    whole = split_threads((await collect(exporter.export_all(KEY.tenant, None)))[1:-1])
    assert list(whole) == [Key(KEY.tenant, "another", "c"), log_key, *sorted(keys)]
    assert [r["om"] for r in await collect(exporter.export_all("nobody", None))] == [
        "export",
        "end",
    ]


async def test_what_is_not_stored_is_not_found(store: SqliteStore) -> None:
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
    exporter = MemoryExporter(store)
    for records in (
        exporter.export_thread(KEY._replace(thread="unknown")),
        exporter.export_thread(resource_key(KEY)),
        exporter.export_all(KEY.tenant, "unknown"),
    ):
        with pytest.raises(NotFound):
            await anext(records)


async def read_with_turns(store: SqliteStore, turns: int) -> list[Record]:
    """Export a thread while it gets so many turns, one after each of its `thread` records."""
    records: list[Record] = []
    async for record in MemoryExporter(store).export_thread(KEY):
        records.append(record)
        if record["om"] == "thread" and turns:
            turns -= 1
            memory = await store.load(KEY)
            await store.commit(memory, replace(memory, turns=memory.turns + 1))
    return records


async def test_a_turn_meanwhile_exports_the_thread_once_more(store: SqliteStore) -> None:
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(3).memory())
    records = await read_with_turns(store, 2)
    assert [record["om"] for record in records].count("thread") == 3
    encoded = [json.loads(msgspec.json.encode(record)) for record in records]
    await compare(store, split_threads(encoded[1:-1])[KEY], KEY)


async def test_an_export_that_never_stands_still_has_no_end(store: SqliteStore) -> None:
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(3).memory())
    with pytest.raises(Conflict):
        await read_with_turns(store, MAX_EXPORT_ATTEMPTS)


async def test_a_thread_that_is_forgotten_meanwhile_ends(store: SqliteStore) -> None:
    """What was read of it stands there; the export goes on."""
    keys = [KEY._replace(thread=name) for name in "ab"]
    for key in keys:
        await store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
    records = []
    async for record in MemoryExporter(store).export_all(KEY.tenant, KEY.resource):
        if record["om"] == "export":
            await store.forget(keys[0])
        records.append(record)
    assert [r["thread"] for r in records if r["om"] == "thread"] == ["b"]
    assert records[-1] == {"om": "end", "threads": 1}


@pytest.mark.parametrize("is_shared", [False, True], ids=["thread", "shared log"])
async def test_a_thread_that_is_forgotten_while_it_is_read_is_told(
    store: SqliteStore, is_shared: bool
) -> None:
    """What was read of it stands there, and a record says that it does not count."""
    keys = [KEY._replace(thread=name) for name in ("" if is_shared else "a", "b")]
    for key in keys:
        await store.commit(Memory(key=key), MemoryBuilder(key).chat(3).memory())
    records = []
    async for record in MemoryExporter(store).export_all(KEY.tenant, KEY.resource):
        if record["om"] == "message" and not any(r["om"] == "message" for r in records):
            await store.forget(keys[0])
        records.append(record)
    index = next(i for i, record in enumerate(records) if record["om"] == "forgotten")
    assert records[index] == {"om": "forgotten", **keys[0]._asdict()}
    assert [r["thread"] for r in records[index:] if r["om"] == "thread"] == ["b"]
    assert records[-1] == {"om": "end", "threads": 1}


class MovingStore:
    """Moves on each time when somebody has listed the threads of a resource."""

    def __init__(self, store: Store, move: Callable[[], Awaitable[Any]]) -> None:
        self._store = store
        self._move = move

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def threads(self, *arguments: Any) -> Any:
        found = await self._store.threads(*arguments)
        await self._move()
        return found


async def activate(shared: SharedStore, name: str) -> None:
    shared.led.say(name, 3)
    await shared.commit(name)
    shared.led.observe(name, 2)
    shared.led.activate(name)
    await shared.commit(name)


async def test_notes_that_come_after_their_log_was_read_are_exported(store: SqliteStore) -> None:
    """An activation between the log and its threads: both come once more, so that no thread counts
    on notes that the export lacks. A thread that goes meanwhile is told."""
    shared = await share_log(store, "AB")
    gone = KEY._replace(thread="B")
    moves: list[Callable[[], Awaitable[Any]]] = [
        lambda: activate(shared, "A"),
        lambda: store.forget(gone),
    ]

    async def move() -> None:
        if moves:
            await moves.pop(0)()

    exporter = MemoryExporter(cast(Store, MovingStore(store, move)))
    records = await collect(exporter.export_all(KEY.tenant, KEY.resource))
    log_key, key = resource_key(KEY), KEY._replace(thread="A")
    assert {"om": "forgotten", **gone._asdict()} in records
    assert records[-1] == {"om": "end", "threads": 1}
    last = split_threads(r for r in records[1:-1] if r["om"] != "forgotten")
    log, thread = (last[one].memory(1, 1) for one in (log_key, key))
    assert thread.coverage == 6
    label = label_thread(await store.secret(), key)
    assert is_consistent(attach_log(thread, log, label))
    await compare(store, last[key], key)
    await compare(store, last[log_key], log_key)


async def test_a_shared_log_that_never_stands_still_has_no_end(store: SqliteStore) -> None:
    shared = await share_log(store, "A")
    moving = MovingStore(store, lambda: activate(shared, "A"))
    with pytest.raises(Conflict, match="shared log"):
        await collect(MemoryExporter(cast(Store, moving)).export_all(KEY.tenant, None))


def test_bytes_that_are_no_text() -> None:
    assert encode_value(b"text") == "text"
    assert encode_value(b"\xff") == {"base64": "/w=="}
    assert encode_value("a\ud800") == {"base64": base64.b64encode(b"a\xed\xa0\x80").decode()}
    assert encode_value((1, None, True, 2.5)) == [1, None, True, 2.5]
