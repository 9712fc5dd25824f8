"""Fill a store with canaries in everything that it keeps of threads, and read every cell of a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
from msgspec.structs import replace

from om_proxy.memory.events.parts import Event, Forgotten
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    Key,
    Memory,
    Observation,
    ObservationLog,
    Part,
    Pin,
    resource_key,
)
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.records import (
    AuditRecord,
    ForgetResult,
    ForgetScope,
    LedgerBatch,
    LedgerLine,
    StoredReceipt,
    WebhookState,
)
from tests.storage.event_contract import activation, started
from tests.storage.ledger_contract import FIGURES
from tests.storage.memory_builder import MemoryBuilder, item, small_things

CANARY_WORD = "canary"
TENANT = "mark-of-tenant"  # not a canary: records say whose they are
# a place, as `message.raw`, with all values that stand there
Cells = Mapping[str, list[Any]]
# columns of text that hold no word from outside, nor a name
PLAIN_COLUMNS = frozenset(
    {
        *("migration.name", "migration.checksum", "migration.applied_at", "secret.value"),
        *("lease.holder", "message.encoding", "message.api", "message.fp", "message.chain"),
        *("observation.state", "observation.chain", "observation.kind", "observation.sources"),
        *("reflection.sources", "generation.why", "event.type", "event.tenant"),
        *("audit.who", "audit.what", "audit.label", "audit.counts", "audit.tenant"),
        *("receipt.id", "receipt.scope", "receipt.label", "receipt.result", "receipt.tenant"),
        *("ledger.who", "ledger.history", "ledger.tenant", "ledger_writer.writer"),
        "ledger.model",  # it stays on the tenant's nameless lines
        *("webhook.name", "webhook.cause", "thread.tenant", "lease.tenant"),
        *("rewrite.name", "sqlite_sequence.name", "search_scope.tenant", "passage_words_config.k"),
        "passage_vector.model",
        "passage_words_idx.term",  # of an index of many pages; test_search.py looks at the bytes
    }
)
# a forgotten tenant's name stays where records say whose they are
PLACES_OF_TENANT = frozenset(
    f"{derived}{table}.tenant"
    for table in ("audit", "receipt", "event", "ledger", "thread", "lease")
    for derived in ("", "pg_stats.")
)


async def fill(store: Store, forgotten: Key, other: Key) -> None:
    """Store two threads that share a log and tell of each other. All words and the name of
    `forgotten` are canaries. Another thread of the resource has a log of its own, and canaries too if
    the resource's name has one."""
    secret = await store.secret()
    labels = {key: label_thread(secret, key) for key in (forgotten, other)}
    said, noted = _create_thread(forgotten)
    stored = await store.commit(Memory(key=forgotten), said)
    await store.commit_shared(
        Change(stored, noted, (), [activation("a", CANARY_WORD)]),
        Change(
            Memory(key=resource_key(forgotten)),
            _create_shared_log(forgotten, labels),
            (),
            [started("b", (forgotten.thread, other.thread)), activation("b", CANARY_WORD)],
        ),
    )
    await _index_thread(store, forgotten)
    told = replace(MemoryBuilder(other).chat(4).memory(), scope="resource")
    await store.commit(
        Memory(key=other), replace(told, other_threads_text=f"told of {CANARY_WORD}")
    )
    lines = {
        LedgerLine(forgotten.tenant, forgotten.resource, 20_000, "gpt", who, "full"): FIGURES
        for who in ("actor", "observer")
    }
    await store.add_to_ledger(LedgerBatch("writer", 1, lines))
    for key in (forgotten, resource_key(forgotten), other):
        assert await store.lease(key, "holder", 3_600)
    await store.set_webhook_state("hash of an address", WebhookState(1, 0, "", 1.0))


async def _index_thread(store: Store, key: Key) -> None:
    read = await store.read_unindexed(key, 1, 100)
    if read:  # a store without an index reads none
        passage = Passage(1, 0, 1, 1, CANARY_WORD, 1.0, 1, (CANARY_WORD,), (CANARY_WORD,))
        place = IndexPlace(read.messages[-1].seq)
        assert await store.index_passages(key, read, 1, [passage], place)
        unembedded = await store.read_unembedded(key, "model", 1)
        assert await store.write_vectors(key, unembedded, "model", [CANARY_WORD.encode()]) == 1


def _create_thread(key: Key) -> tuple[Memory, Memory]:
    """Return a thread after its messages, and then with something in each field."""
    said = item(
        f'{{"content":"{CANARY_WORD}"}}', CANARY_WORD, calls=(CANARY_WORD,), answers=CANARY_WORD
    )
    thread = MemoryBuilder(key).say(said).chat(3, CANARY_WORD)
    first = thread.memory()
    memory = thread.cover(1).chunk(1).keep_reflection().memory()
    words = {
        "text": CANARY_WORD,
        "task": CANARY_WORD,
        "suggestion": CANARY_WORD,
        "model": CANARY_WORD,
    }
    own = replace(
        memory.log,
        entries=tuple(replace(o, title=CANARY_WORD, **words) for o in memory.log.entries),
        reflection=memory.log.reflection and replace(memory.log.reflection, **words),
        pins=(Pin(9, CANARY_WORD, 1, 1.0, "cli"),),
    )
    things = small_things() | {"title": CANARY_WORD, "model": CANARY_WORD, "timezone": CANARY_WORD}
    things["overrides"] = f'{{"instruction":"{CANARY_WORD}"}}'.encode()
    return first, replace(
        memory,
        log=own,
        chunks=tuple(replace(chunk, title=CANARY_WORD, **words) for chunk in memory.chunks),
        other_threads_text=CANARY_WORD,
        **things,
    )


def _create_shared_log(key: Key, labels: Mapping[Key, str]) -> Memory:
    """Return a log with an entry of the thread alone, and one of both threads."""
    parts = tuple(
        Part(label, 0, 2, bytes(16), CANARY_WORD, CANARY_WORD) for label in labels.values()
    )
    entries = tuple(
        Observation(
            id=number,
            after=0,
            last=0,
            chain=EMPTY_CHAIN,
            text=CANARY_WORD,
            tokens=1,
            source_tokens=2,
            at=1.0,
            parts=parts[:number],
        )
        for number in (1, 2)
    )
    return Memory(key=resource_key(key), next_id=3, log=ObservationLog(entries=entries))


async def forget(store: Store, scope: ForgetScope, key: Key) -> None:
    """Forget as the admin API does, with all that it leaves."""
    label = label_thread(await store.secret(), key)

    def describe_forgotten(key: Key) -> Event:
        return Event(2e9, Forgotten(label=label, forgotten_at="now"))

    result = ForgetResult()
    if scope == "thread":
        result = await store.forget(key, None, describe_forgotten(key))
    else:
        is_last = False
        while not is_last:
            resource = key.resource if scope == "resource" else None
            batch = await store.forget_batch(key.tenant, resource, describe_forgotten)
            result, is_last = result.add(batch.result), batch.is_last
    await store.add_audit([AuditRecord(2e9, "cli", key.tenant, f"forget_{scope}", label)])
    await store.add_receipt(StoredReceipt("r", 2e9, key.tenant, scope, label, result))


def read_sqlite(path: Path) -> Cells:
    """Return every cell of every table of the file."""
    cells: dict[str, list[Any]] = {}
    with closing(sqlite3.connect(path)) as db:
        # a virtual table stands in the tables that it is made of
        tables = db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        ).fetchall()
        for (table,) in tables:
            cursor = db.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - the file's own name
            columns = [f"{table}.{column[0]}" for column in cursor.description]
            cells |= {column: [] for column in columns}
            for row in cursor:
                for column, value in zip(columns, row, strict=True):
                    cells[column].append(value)
    return cells


async def read_postgres(url: str, schema: str) -> Cells:
    """Return every cell of every table of the schema, and what the planner's statistics show."""
    cells: dict[str, list[Any]] = {}
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("ANALYZE")
        tables = await connection.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = $1", schema
        )
        for (table,) in tables:
            statement = await connection.prepare(f'SELECT * FROM "{schema}"."{table}"')  # noqa: S608 - names of the server's own
            names = [attribute.name for attribute in statement.get_attributes()]
            cells |= {f"{table}.{name}": [] for name in names}
            for row in await statement.fetch():
                for name, value in row.items():
                    cells[f"{table}.{name}"].append(value)
        told = await connection.fetch(
            """SELECT tablename, attname, most_common_vals::text, histogram_bounds::text FROM pg_stats
            WHERE schemaname = $1""",
            schema,
        )
        for table, column, *values in told:
            # a value of bytea is shown in hexadecimal digits
            found = [value for value in values if value is not None]
            decoded = [bytes.fromhex(word) for text in found for word in _find_hex(text)]
            cells[f"pg_stats.{table}.{column}"] = [*found, *decoded]
    finally:
        await connection.close()
    return cells


def _find_hex(text: str) -> list[str]:
    parts = text.strip("{}").replace('"', "").replace("\\", "").split(",")
    return [part.removeprefix("x") for part in parts if part.startswith("x")]


def is_derived(place: str) -> bool:
    """Whether the server made these values from others."""
    return place.startswith("pg_stats.")


def find_places(cells: Cells, word: str) -> set[str]:
    """Return the places where the word stands."""
    return {place for place, values in cells.items() if any(_holds(v, word) for v in values)}


def _holds(value: Any, word: str) -> bool:
    if isinstance(value, bytes):
        return word.encode() in value
    return isinstance(value, str) and word in value


def find_text_places(cells: Cells) -> set[str]:
    """Return the places with any text, or bytes."""
    return {
        place for place, values in cells.items() if any(isinstance(v, str | bytes) for v in values)
    }


def find_number(cells: Cells, number: int) -> set[str]:
    return {place for place, values in cells.items() if number in values}
