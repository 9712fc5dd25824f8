"""Export everything stored of a thread, a resource or a tenant, as records in one order
(docs/contributing/seeing.md#forgetting-and-export).

Threads come in the order of their names, a resource's shared log before its threads. A thread is a
`thread` record, then its messages, observations, generations, reflection and pins, each kind by
number. It is read page by page. If a turn was stored meanwhile, the thread is exported once more:
the last `thread` record of a name and what follows it are the ones that count. So it is with a
resource whose shared log was changed before its last thread was read. If a thread was forgotten
meanwhile, a `forgotten` record says that none of them counts; so it does, and says why, if a stored
value of a thread cannot be read.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from om_proxy.common.errors import Conflict, NotFound, UnopenedText
from om_proxy.memory.model import RESOURCE_THREAD, Beginning, Key, Memory, Observation, Reflection
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.contract.memories import StoredThreads
from om_proxy.storage.values.stored_rows import GenerationEntries, StoredMessage, StoredObservation
from om_proxy.storage.whole_threads import find_listed, list_keys, list_resources

EXPORT_FORMAT = 1
API_FORMAT = 2  # of an export with messages that came by another API than chat
MAX_EXPORT_ATTEMPTS = 5
# of messages that may hold images: a page is in memory at once
MESSAGES_PER_PAGE = 50
ROWS_PER_PAGE = 200

Record = dict[str, Any]

# records of their own hold these, or the importing store sets them
OWN_RECORDS = (
    "key",
    "version",
    "row_id",
    "recent",
    "tail",
    "log",
    "chunks",
    "shared_log_ref",
    "put_aside",
)
LOG_RECORDS = ("entries", "reflection", "pins")


@dataclass(frozen=True, slots=True, eq=False)
class MemoryExporter:
    """Reads the store itself: a shared log is a record of its own, not attached to its threads."""

    store: StoredThreads

    async def export_thread(self, key: Key) -> AsyncIterator[Record]:
        """Yield the records of one thread, without the log that it may share. Raise NotFound before
        the first record."""
        if not key.thread or not await self.store.version(key):
            raise NotFound("there is no memory of this thread")
        versions: dict[Key, int] = {}
        yield _header()
        async for record in _add_format(self._export_keys(self._list_one(key), versions, set())):
            yield record
        yield _end(_count_threads(versions))

    async def export_all(self, tenant: str, resource: str | None) -> AsyncIterator[Record]:
        """Yield the records of a resource, or of all resources of the tenant. Raise NotFound before
        the first record, for a resource of which nothing is stored."""
        if resource is not None and await self.store.resource(tenant, resource) is None:
            raise NotFound("there is no memory of this resource")
        yield _header()
        async for record in _add_format(self._export_resources(tenant, resource)):
            yield record

    async def _export_resources(self, tenant: str, resource: str | None) -> AsyncIterator[Record]:
        thread_count = 0
        async for listed in list_resources(self.store, tenant, resource):
            versions: dict[Key, int] = {}
            async for record in self._export_resource(
                Key(tenant, listed.resource, RESOURCE_THREAD), versions
            ):
                yield record
            thread_count += _count_threads(versions)
        yield _end(thread_count)

    async def _list_one(self, key: Key) -> AsyncIterator[tuple[Key, float | None]]:
        """Yield the key, with the unix seconds at which the thread began."""
        info = await find_listed(self.store, key)
        yield key, info and info.created_at

    async def _export_resource(
        self, log_key: Key, versions: dict[Key, int]
    ) -> AsyncIterator[Record]:
        """Yield the shared log of a resource, and its threads. If the log moves before the last of
        them is read, a thread may count on notes that came later: then all come once more.
        `versions`: as in `_export_one`."""
        for _ in range(MAX_EXPORT_ATTEMPTS):
            earlier = {key for key, version in versions.items() if version}
            keys = list_keys(self.store, log_key.tenant, log_key.resource)
            async for record in self._export_keys(keys, versions, earlier):
                yield record
            for key in sorted(earlier):  # nothing lists them any more
                versions[key] = 0
                yield _forgotten_record(key)
            if await self.store.version(log_key) == versions.get(log_key, 0):
                return
        raise Conflict("the shared log changed during every attempt to export its resource")

    async def _export_keys(
        self,
        keys: AsyncIterator[tuple[Key, float | None]],
        versions: dict[Key, int],
        earlier: set[Key],
    ) -> AsyncIterator[Record]:
        """Yield the records of each key, and take it out of `earlier`."""
        secret = await self.store.secret()
        async for key, created_at in keys:
            earlier.discard(key)
            origin = {"created_at": created_at, "label": label_thread(secret, key)}
            try:
                async for record in self._export_one(key, origin, versions):
                    yield record
            except UnopenedText as exc:
                versions[key] = 0
                yield _forgotten_record(key) | {"why": str(exc)}

    async def _export_one(
        self, key: Key, origin: Record, versions: dict[Key, int]
    ) -> AsyncIterator[Record]:
        """Yield the records of one key. `versions`: of what was exported, by key; 0: forgotten
        since."""
        for _ in range(MAX_EXPORT_ATTEMPTS):
            memory = await self.store.load(key)
            if not memory.version:  # forgotten since it was listed
                if versions.get(key):
                    yield _forgotten_record(key)
                versions[key] = 0
                return
            versions[key] = memory.version
            async for record in self._export_memory(memory, origin):
                yield record
            if await self.store.version(key) == memory.version:
                return
        raise Conflict("the thread changed during every attempt to export it")

    async def _export_memory(self, memory: Memory, origin: Record) -> AsyncIterator[Record]:
        key, store = memory.key, self.store
        yield _thread_record(memory, await store.delivered_reply(key)) | origin
        seq = id_ = 0
        while messages := await store.stored_messages(key, seq, limit=MESSAGES_PER_PAGE):
            for message in messages:
                yield _message_record(message)
            seq = messages[-1].message.seq
        while observations := await store.observations(key, id_, limit=ROWS_PER_PAGE):
            for observation in observations:
                yield _observation_record(observation)
            id_ = observations[-1].entry.id
        async for record in self._export_generations(key):
            yield record
        if memory.log.reflection is not None:
            yield _reflection_record(memory.log.reflection)
        for pin in memory.log.pins:
            yield {"om": "pin", **encode_value(pin)}

    async def _export_generations(self, key: Key) -> AsyncIterator[Record]:
        """Yield the generations by number. Those that began with an empty log have no entries."""
        number, beginnings = -1, dict(sorted((await self.store.beginnings(key)).items()))
        while page := await self.store.generation_entries(key, number, limit=ROWS_PER_PAGE):
            for generation in page:
                for empty in [n for n in beginnings if n < generation.number]:
                    yield _generation_record(GenerationEntries(empty, ()), beginnings.pop(empty))
                yield _generation_record(generation, beginnings.pop(generation.number, None))
            number = page[-1].number
        for empty, began in beginnings.items():
            yield _generation_record(GenerationEntries(empty, ()), began)


def _header(number: int = EXPORT_FORMAT) -> Record:
    return {"om": "export", "format": number, "secret": None}


async def _add_format(records: AsyncIterator[Record]) -> AsyncIterator[Record]:
    """Yield the records, and before the first message that came by another API than chat that the
    format is `API_FORMAT`: an older release would take it for one of chat."""
    is_said = False
    async for record in records:
        if "api" in record and not is_said:
            is_said = True
            yield _header(API_FORMAT)
        yield record


def _end(threads: int) -> Record:
    """Return the record without which an export is not whole. Shared logs are no threads."""
    return {"om": "end", "threads": threads}


def _count_threads(versions: Mapping[Key, int]) -> int:
    return sum(key.thread != RESOURCE_THREAD and version > 0 for key, version in versions.items())


def _forgotten_record(key: Key) -> Record:
    return {"om": "forgotten", **encode_value(key._asdict())}


def _thread_record(memory: Memory, delivered_seq: int | None) -> Record:
    return {
        "om": "thread",
        **encode_value(memory.key._asdict()),
        **_select_fields(memory, OWN_RECORDS),
        "log": _select_fields(memory.log, LOG_RECORDS),
        "delivered_seq": delivered_seq,
    }


def _select_fields(value: Struct, left_out: Sequence[str]) -> Record:
    names = [name for name in value.__struct_fields__ if name not in left_out]
    return {name: encode_value(getattr(value, name)) for name in names}


def _message_record(stored: StoredMessage) -> Record:
    message, item = stored.message, encode_value(stored.message.item)
    if item["api"] == "chat":
        del item["api"]
    del item["origin"]  # its id is keyed by the store's secret
    # few messages have look-ups, and only those a field for them
    look_ups = {} if message.look_ups is None else {"look_ups": encode_value(message.look_ups)}
    return {
        "om": "message",
        "seq": message.seq,
        "state": stored.state,
        "parent": stored.parent,
        **item,
        "chain": encode_value(message.chain),
        "tokens": message.tokens,
        "at": message.at,
        "encoding": message.encoding,
        **look_ups,
    }


def _observation_record(stored: StoredObservation) -> Record:
    entry: Observation = stored.entry
    return {"om": "observation", "state": stored.state, **encode_value(entry)}


def _generation_record(generation: GenerationEntries, began: Beginning | None) -> Record:
    return {
        "om": "generation",
        "number": generation.number,
        "entries": list(generation.entries),
        "began": encode_value(began),
    }


def _reflection_record(reflection: Reflection) -> Record:
    return {"om": "reflection", **encode_value(reflection)}


def encode_value(value: Any) -> Any:
    """Return a value as JSON can hold it. Text and bytes are a JSON string where they are UTF-8,
    else `{"base64": …}` of their bytes; a lone surrogate is encoded as if it were a character."""
    if isinstance(value, str | bytes):
        return _encode_text(value)
    if isinstance(value, Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: encode_value(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode_value(item) for item in value]
    return value


def _encode_text(value: str | bytes) -> str | dict[str, str]:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
