"""An import of hostile records costs nobody anything: each field of each record, with each kind of
value. The fields come from a thread that has them all, so a new field joins by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import UsageError
from om_proxy.management.memory_export import LOG_RECORDS, OWN_RECORDS
from om_proxy.management.moving.importing import ImportOptions, import_memory
from om_proxy.management.moving.verifying import verify_store
from om_proxy.memory.ledger import Account, PromptMark, ThreadLedger
from om_proxy.memory.model import (
    RESOURCE_THREAD,
    Beginning,
    Cell,
    Failures,
    Item,
    Key,
    Memory,
    Message,
    Observation,
    ObservationLog,
    Pin,
    Reflection,
    View,
)
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.storage.sqlite.store import SqliteStore
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ADMIN_TOKEN, CREDENTIALS, OWN, ask
from tests.management.moving.test_importing import export
from tests.storage.moving_contract import store_eventful
from tests.support.long_forms import IS_LONG
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

ThreadPath = tuple[Any, ...]  # of a value in the records of a thread: numbers and names

CANARY = "CANARY-of-another-tenant"
VALUES_PER_FIELD = 99 if IS_LONG else 2
TURNS_IN_TAKEN_THREADS = 10_000 if IS_LONG else 6
TYPES = (
    *(Memory, ObservationLog, Message, Item, Observation, Reflection, View, Cell, Failures, Pin),
    *(Beginning, LookedUp, Round, ThreadLedger, PromptMark),
)
# of these the field is a list without names, or is never in an export
NO_NAMES = {
    "mark",
    "origin",  # an import does not read it
    *OWN_RECORDS,
    *LOG_RECORDS,
    "item",
    "parts",
    *Account.__struct_fields__,
}


def list_hostile_values(address: str) -> list[Any]:
    model = {"model": "openai/x", "api_base": address, "api_key": "x"}
    return [
        json.dumps({"api_base": address}),
        json.dumps({"observation": {"model": model}}),
        address,
        *(-1, 2**63 - 1, 10**30, 1e300, -1e300, 4_102_444_800, 0, 1.5),
        *(None, True, [], {}, [[]], [-1], "", "x"),
        *("\x00\n\x1b[31m", "\ud800", "A" * 100_000, {"base64": "/w=="}, {"base64": "?"}),
        {"base64": "YeKAnO2ggGI="},  # half a character
        *("../../etc/passwd", "resource", "interrupted", '{"role":"user"}],"model":"other"'),
    ]


def list_paths(value: Any, path: ThreadPath = ()) -> Iterator[ThreadPath]:
    """List the places of all values. Of a list of equal things the last one stands for all."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, one in value.items():
            yield from list_paths(one, (*path, name))
    elif isinstance(value, list) and value:
        yield from list_paths(value[-1], (*path, len(value) - 1))


def put_value(records: list[Any], path: ThreadPath, value: Any) -> list[Any]:
    changed = list(records)
    changed[path[0]] = deepcopy(records[path[0]])
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


async def make_records() -> list[dict[str, Any]]:
    """Return the export of a thread that has something in every field, one record of each kind."""
    store = await SqliteStore.open(":memory:")
    try:
        whole = await store_eventful(store, Key("t", "mine", "THREAD"))
        pins = (Pin(1, "Keep it short.", 4, 1.5, "admin"),)
        chunk = replace(whole.memory.chunks[-1], sources=(1,), replaces=0)
        own = {"overrides": b'{"observation": {"message_tokens": 9000}}', "chunks": (chunk,)}
        log = replace(whole.memory.log, pins=pins, pins_version=1)
        await store.commit(whole.memory, replace(whole.memory, log=log, **own))
        records = [json.loads(line) for line in await export(store)]
        for record in records:
            if record["om"] == "message":
                record["api"] = "chat"  # which an export leaves out
        return records
    finally:
        await store.close()


def pick_paths(records: list[dict[str, Any]]) -> list[ThreadPath]:
    """Return the places of the last record of each kind, and of a message with look-ups."""
    last = {record["om"]: number for number, record in enumerate(records)}
    numbers = [*last.values(), next(n for n, r in enumerate(records) if "look_ups" in r)]
    return [(number, *path) for number in numbers for path in list_paths(records[number])]


def test_every_field_of_every_record_is_tried() -> None:
    paths = pick_paths(asyncio.run(make_records()))
    names = {step for path in paths for step in path if isinstance(step, str)}
    for kind in TYPES:
        fields = getattr(kind, "__struct_fields__", None) or kind._fields
        assert set(fields) - NO_NAMES <= names, kind


@asynccontextmanager
async def count_foreign_calls() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Listen at an address that no setting names. Yield it, and what was sent there."""
    received: list[bytes] = []

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1_000))
        writer.close()

    async with await asyncio.start_server(receive, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", received


async def import_lines(run: Running, lines: list[bytes], options: ImportOptions) -> str:
    """Import the lines. Return why they are refused; empty if they are not."""
    try:
        await import_memory(run.app.store, lines.__iter__, options)
    except UsageError as exc:
        return str(exc)
    return ""


async def post_lines(run: Running, lines: list[bytes], _: ImportOptions) -> str:
    """Do the same by the admin API, for the tenant of the caller's key."""
    answer = await ask(run, "POST", "/import", OWN, b"".join(lines))
    assert answer.status_code in (200, 400), answer.text
    return "" if answer.status_code == 200 else str(answer.json()["error"]["message"])


async def read_lists(run: Running) -> None:
    """Read every list of all tenants, and look that the attacker sees nothing of another tenant."""
    admin = CREDENTIALS["admin"]
    for page in ("/threads", "/threads?order=recent", "/stats"):
        assert (await ask(run, "GET", page, admin)).status_code == 200, page
    for page in ("/threads", "/resources", "/stats", "/export"):
        answer = await ask(run, "GET", page, OWN)
        assert answer.status_code == 200, page
        assert CANARY not in answer.text
    assert (await run.http.get(f"{run.base}/metrics")).status_code == 200


@asynccontextmanager
async def own_store(backend: str, folder: Path) -> AsyncIterator[str]:
    """Yield the section of a store that is empty."""
    if backend == "sqlite":
        yield f'url: "sqlite:///{folder}/om.db"'
    elif backend == "postgres":
        with own_schema(url := find_postgres_url()) as prefix:
            yield f'url: "{url}", prefix: {prefix}'
    else:
        with own_prefix(url := find_redis_url()) as prefix:
            yield f'url: "{url}", prefix: {prefix}'


@pytest.mark.parametrize(
    ("backend", "put_in", "every"),
    [
        ("sqlite", import_lines, 1),
        *((backend, post_lines, 12) for backend in ("sqlite", "postgres", "redis")),
    ],
)
async def test_hostile_records(
    tmp_path: Path,
    backend: str,
    put_in: Callable[[Running, list[bytes], ImportOptions], Awaitable[str]],
    every: int,
) -> None:
    """No call goes to a foreign address, no list breaks, no word of another tenant is told, nothing
    is stored of what is refused, and what is taken is sound. `every`: one of so many fields is
    tried."""
    records = await make_records()
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with (
        count_foreign_calls() as (address, foreign_calls),
        own_store(backend, tmp_path) as storage,
        run_with_scripted_models(tmp_path, more=more, storage=storage) as run,
    ):
        await run.chat("theirs", key="sk-b").say(CANARY)
        await run.chat("mine").say("Hello.")
        [tenant] = {i.key.tenant for i in await run.app.store.threads(None) if i.key[2] == "mine"}
        options = ImportOptions(into_tenant=tenant, adopts_secret=False)
        taken: list[Key] = []
        refusals: list[str] = []
        values = list_hostile_values(address)
        for number, path in list(enumerate(pick_paths(records)))[::every]:
            turned = [values[(number + n) % len(values)] for n in range(len(values))]
            chosen = values[:2] if path[-1] == "overrides" else []
            for value in [*chosen, *turned[:VALUES_PER_FIELD]]:
                name = f"t{len(taken)}-{number}"
                changed = put_value(records, path, value)
                text = "\n".join(map(json.dumps, changed)).replace('"THREAD"', f'"{name}"')
                lines = [line.encode() + b"\n" for line in text.split("\n")]
                refusal = await put_in(run, lines, options)
                if refusal:
                    refusals.append(refusal)
                else:
                    taken.append(Key(tenant, "mine", name))
        assert len(await run.app.store.threads(tenant, limit=100_000)) <= len(taken) + 1
        assert max(map(len, refusals)) < 700
        await read_lists(run)
        for key in taken[:: max(1, len(taken) // TURNS_IN_TAKEN_THREADS)]:
            if not await run.app.store.version(key):
                continue
            chat = run.chat(key.thread, **{"x-om-resource": key.resource})
            await chat.say("What do you know? " * 400)
            await run.app.background.wait_idle()
            for page in ("", "/messages", "/observations", "/settings", "/pins"):
                answer = await ask(run, "GET", f"/threads/{key.thread}{page}?resource=mine", OWN)
                assert answer.status_code == 200, (key, page, answer.text)
                assert CANARY not in answer.text
        await read_lists(run)
        result = await verify_store(run.app.store)
        assert [fault for fault in result.faults if fault.key.thread != RESOURCE_THREAD] == []
        _, receipt = await run.chat("theirs", key="sk-b").say("And now?")
        assert receipt["status"] == "applied"
        assert foreign_calls == []
        own_requests = [
            r for r in run.models.requests if b"sk-a" in dict(r.headers)[b"authorization"]
        ]
        assert not any(CANARY.encode() in request.body for request in own_requests)
        assert taken
