"""Rows that an earlier release wrote are read."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from msgspec.structs import replace

from om_proxy.memory.model import Failures, Memory
from om_proxy.storage.sqlite.store import SqliteStore
from tests.memory.building import KEY


async def test_a_thread_without_a_recorded_cause(tmp_path: Path) -> None:
    """The first release stored no cause of a failure. Its rows are read, listed and written
    again."""
    file = tmp_path / "om.db"
    store = await SqliteStore.open(file)
    memory = await store.commit(
        Memory(key=KEY), Memory(key=KEY, failures=Failures(2, 9.0, False, "observe om_model"))
    )
    await store.close()
    with sqlite3.connect(file) as db:
        ((state,),) = db.execute("SELECT state FROM thread").fetchall()
        earlier = {name: value for name, value in json.loads(state).items() if name != "cause"}
        db.execute("UPDATE thread SET state = ?", (json.dumps(earlier).encode(),))
    db.close()
    store = await SqliteStore.open(file)
    try:
        loaded = await store.load(KEY)
        assert loaded.failures == Failures(2, 9.0)
        (info,) = await store.threads(None)
        assert (info.failures, info.cause) == (2, "")
        await store.commit(
            loaded, replace(loaded, failures=Failures(3, 9.0, False, "observe om_cut_off"))
        )
        (info,) = await store.threads(None)
        assert (info.failures, info.cause) == (3, "observe om_cut_off")
    finally:
        await store.close()
    assert memory.failures.cause == "observe om_model"
