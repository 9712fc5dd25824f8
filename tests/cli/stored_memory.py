"""A store with notes, messages and failures, and a server beside it, for the tests of the commands
that read it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
from msgspec.structs import replace

from om_proxy.common.apis import ApiName
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    Failures,
    Item,
    Key,
    Memory,
    Message,
    Observation,
    ObservationLog,
    extend_chain,
)
from om_proxy.storage.sqlite.store import SqliteStore
from tests.e2e.running import Chat, Running, run_with_scripted_models

MEMORY_SETTINGS = (
    "observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 2s}, "
    "reflection: {observation_tokens: 900}"
)
CONFIG = f"""
upstream: [{{base_url: "http://127.0.0.1:9/v1", layout: blocks}}]
storage: {{url: "sqlite:///om.db"}}
memory: {{{MEMORY_SETTINGS}}}
"""
CRATE = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 8
SAID_AT = 1.7e9


@asynccontextmanager
async def run_server(folder: Path) -> AsyncIterator[Running]:
    """Run a server whose store `om.yaml` in this folder names too. Its clock is the machine's."""
    (folder / "om.yaml").write_text(CONFIG)
    async with run_with_scripted_models(folder, MEMORY_SETTINGS) as run:
        run.clock.now = time.time()
        yield run


async def converse(run: Running, thread: str, turns: int, **headers: str) -> Chat:
    """Let a client speak, and the background end its work after each turn."""
    talk = run.chat(thread, **headers)
    for n in range(turns):
        await talk.say(CRATE.format(n=n))
        await run.app.background.wait_idle()
    return talk


def read_last_prompt(run: Running) -> str:
    """Return the newest prompt at the upstream, as JSON."""
    return orjson.dumps(run.models.requests_to("scripted-actor")[-1].messages).decode()


async def store_thread(
    folder: Path,
    key: Key,
    text: str = "They keep bees.",
    *,
    title: str | None = None,
    failures: int = 0,
    api: ApiName = "chat",
) -> None:
    """Store a thread where `om.yaml` in this folder names the store: two messages, one with an
    active note and one with a chunk. `text`: of all of them. `api`: that the messages came by."""
    (folder / "om.yaml").write_text(CONFIG)
    raw = orjson.dumps({"role": "user", "content": text})
    prints = [bytes(15) + bytes([seq]) for seq in (1, 2)]
    chains = [extend_chain(EMPTY_CHAIN, prints[0])]
    chains.append(extend_chain(chains[0], prints[1]))
    messages = tuple(
        Message(seq, Item(raw, "user", prints[seq - 1], api=api), chains[seq - 1], 3, SAID_AT)
        for seq in (1, 2)
    )
    note, chunk = (
        Observation(
            id=seq,
            after=seq - 1,
            last=seq,
            chain=chains[seq - 1],
            text=text,
            tokens=30,
            source_tokens=40,
            at=SAID_AT,
            task=text,
            model="observer",
        )
        for seq in (1, 2)
    )
    said = Memory(
        key=key,
        tail=messages,
        next_seq=3,
        title=title,
        model="actor",
        turn_at=SAID_AT,
        failures=Failures(
            failures, SAID_AT, failures > 9, "observe om_model 401" if failures else ""
        ),
    )
    store = await SqliteStore.open(folder / "om.db")
    stored = await store.commit(Memory(key=key), said)
    observed = replace(
        stored,
        coverage=1,
        covered_count=1,
        covered_tokens=messages[0].framed_tokens,
        recent=(messages[0].mark,),
        tail=messages[1:],
        log=ObservationLog(entries=(note,)),
        chunks=(chunk,),
        next_id=3,
    )
    await store.commit(stored, observed)
    await store.close()
