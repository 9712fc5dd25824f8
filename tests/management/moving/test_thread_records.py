"""The records of an export are read back into threads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from om_proxy.common.errors import UsageError
from om_proxy.management.memory_export import MemoryExporter
from om_proxy.management.moving.thread_records import (
    WHAT_TO_GIVE,
    ExportEnd,
    ExportHeader,
    RecordDecoder,
    ThreadHead,
    ThreadParts,
    load_rows,
    read_lines,
)
from om_proxy.memory.model import Memory
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.whole_threads import read_whole_thread
from tests.storage.contract import MOVES, Step
from tests.storage.memory_builder import KEY, MemoryBuilder, small_things


@pytest.mark.parametrize("steps", MOVES.values(), ids=MOVES)
async def test_thread_is_built_again(tmp_path: Path, steps: Sequence[Step]) -> None:
    """As the store has it, but for its version and its row."""
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        thread, memory = MemoryBuilder(), Memory(key=KEY)
        for step in steps:
            step(thread)
            memory = await store.commit(memory, thread.memory())
        thread.more = small_things()
        memory = await store.commit(memory, thread.memory())
        records = [record async for record in MemoryExporter(store).export_thread(KEY)]
        header, head, *parts, end = (
            part for _, part in read_lines(map(msgspec.json.encode, records), RecordDecoder())
        )
        assert (header, end) == (ExportHeader(None), ExportEnd(1))
        assert isinstance(head, ThreadHead)
        collected = ThreadParts(head, parts)
        whole = await read_whole_thread(store, KEY, head.created_at)
        assert whole
        stored = msgspec.structs.replace(whole.memory, version=0, row_id=0)
        assert collected.join() == whole._replace(memory=stored)
        assert load_rows(whole) == whole
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", f"this is empty, so it is no export: {WHAT_TO_GIVE}"),
        (b"PK\x03\x04", f"line 1 is no JSON, so it is no export: {WHAT_TO_GIVE}"),
        (b" \n\n", f"line 1 is empty, so it is no export: {WHAT_TO_GIVE}"),
        (b"\x1f\x8b\x08\x00", "this is compressed with gzip: unpack it first"),
        (b"\x28\xb5\x2f\xfd\x20", "this is compressed with zstd: unpack it first"),
        (
            b"SQLite format 3\x00\x10\x00",
            "this is an SQLite database: `om-proxy store copy` copies one into another store",
        ),
        (
            b"\xff\xfe\x00",
            f"line 1 is no JSON, so it is no export: {WHAT_TO_GIVE}",
        ),
        (b'[{"role": "user"}]\n', "line 1: this is no JSON object"),
        (
            b'{"role": "user"}\n',
            f"line 1: no record of an export is of the kind None: {WHAT_TO_GIVE}",
        ),
        (
            b'{"om":"export","form',
            "line 1: the export breaks off in this line, so a part is missing; export it again",
        ),
        (
            b'{"om":"export","format":1,"secret":null}\n{"om":"thr',
            "line 2: the export breaks off in this line, so a part is missing; export it again",
        ),
        (
            b'{"om":"export","format":1,"secret":null}\n',
            "line 1: the export breaks off here, so a part is missing; export it again",
        ),
    ],
)
def test_what_is_no_export_says_what_it_is(content: bytes, said: str) -> None:
    """And what to do."""
    with pytest.raises(UsageError) as refused:
        list(read_lines(BytesIO(content), RecordDecoder()))
    assert str(refused.value) == said


def test_secret_of_the_header() -> None:
    decoder = RecordDecoder()
    line = json.dumps({"om": "export", "format": 1, "secret": "00ff" * 16}).encode()
    assert decoder.decode(line) == ExportHeader(b"\x00\xff" * 16)
