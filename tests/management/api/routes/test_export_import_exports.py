"""An export goes out line by line, and its last line says that it is whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.common.errors import StorageError
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ADMIN_TOKEN, CREDENTIALS, FOREIGN, OWN, ask


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        for name in ("crates", "docks"):
            await running.chat(name, **{"x-om-resource": "ada"}).say(f"Where is {name}?")
        await running.chat("alone").say("Where is it?")
        yield running


async def export(run: Running, query: str, headers: dict[str, str] = OWN) -> list[dict[str, Any]]:
    answer = await ask(run, "GET", f"/export{query}", headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


async def receive_export(run: Running, query: str, received: bytearray) -> None:
    """Add what comes to `received`, also if the connection is cut."""
    url = f"{run.base}/om/v1/export{query}"
    async with run.http.stream("GET", url, headers=OWN) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_bytes():
            received += piece


@pytest.mark.parametrize(
    ("query", "threads"),
    [
        ("", ["crates", "docks", "alone"]),
        ("?resource=ada", ["crates", "docks"]),
        ("?resource=ada&thread=docks", ["docks"]),
        ("?thread=alone", ["alone"]),
    ],
)
async def test_what_an_export_holds(run: Running, query: str, threads: list[str]) -> None:
    records = await export(run, query)
    assert records[0] == {"om": "export", "format": 1, "secret": None}
    assert records[-1] == {"om": "end", "threads": len(threads)}
    assert sorted(r["thread"] for r in records if r["om"] == "thread") == sorted(threads)
    assert sum(record["om"] == "message" for record in records) == 2 * len(threads)
    secret = await run.app.store.secret()
    assert secret.hex() not in str(records)


@pytest.mark.parametrize("query", ["?thread=crates", "?resource=unknown", "?thread=unknown"])
async def test_what_is_not_there(run: Running, query: str) -> None:
    assert (await ask(run, "GET", f"/export{query}")).status_code == 404


async def test_another_tenant_gets_nothing_of_it(run: Running) -> None:
    assert [r["om"] for r in await export(run, "", FOREIGN)] == ["export", "end"]
    assert (await ask(run, "GET", "/export?resource=ada", FOREIGN)).status_code == 404
    tenant = (await ask(run, "GET", "/threads")).json()["items"][0]["tenant"]
    records = await export(run, f"?tenant={tenant}", CREDENTIALS["admin"])
    assert records[-1] == {"om": "end", "threads": 3}


async def test_a_store_that_fails_in_the_middle(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut after what was read, and the last record is missing. An export that
    cannot begin is an error."""

    async def fail(*_: object, **__: object) -> None:
        raise StorageError("Input/output error")

    monkeypatch.setattr(run.app.store, "observations", fail)
    received = bytearray()
    with pytest.raises(httpx.RemoteProtocolError):
        await receive_export(run, "?thread=alone", received)
    records = [json.loads(line) for line in received.splitlines()]
    assert [record["om"] for record in records] == ["export", "thread", "message", "message"]
    monkeypatch.setattr(run.app.store, "version", fail)
    assert (await ask(run, "GET", "/export?thread=alone")).status_code == 503
