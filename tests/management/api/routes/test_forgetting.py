"""A resource or a tenant is forgotten by whom it belongs to, and leaves a receipt."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from om_proxy.common.errors import StorageError
from om_proxy.management.api.routes.forgetting import ForgetReceipt
from om_proxy.storage.values.records import RECEIPTS_KEPT_S
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ADMIN_TOKEN, CREDENTIALS, FOREIGN, OWN, ask


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with run_with_scripted_models(tmp_path, "scope: resource", more=more) as running:
        for name in ("crates", "docks"):
            await running.chat(name, **{"x-om-resource": "worker-7"}).say("Where is it?")
        await running.chat("alone", **{"x-om-resource": "alone"}).say("Where is it?")
        yield running


async def list_names(run: Running) -> list[str]:
    items = (await ask(run, "GET", "/threads")).json()["items"]
    return [line["thread"] for line in items]


async def find_tenant(run: Running) -> str:
    tenant: str = (await ask(run, "GET", "/threads")).json()["items"][0]["tenant"]
    return tenant


def check_signature(run: Running, receipt: dict[str, Any], secret: bytes) -> None:
    unsigned = msgspec.convert({**receipt, "signature": ""}, ForgetReceipt)
    content = b"receipt\0" + msgspec.json.encode(unsigned)
    assert receipt["signature"] == hmac.new(secret, content, hashlib.sha256).hexdigest()


async def test_a_resource_is_forgotten(run: Running) -> None:
    answer = await ask(run, "DELETE", "/resources/worker-7")
    receipt = answer.json()
    assert (receipt["scope"], receipt["forgotten"]["threads"]) == ("resource", 2)
    assert await list_names(run) == ["alone"]
    assert (await ask(run, "GET", "/resources/worker-7")).status_code == 404
    assert (await ask(run, "DELETE", "/resources/worker-7")).status_code == 404
    assert "worker-7" not in answer.text
    again = (await ask(run, "GET", f"/receipts/{receipt['id']}")).json()
    assert again == receipt
    check_signature(run, receipt, await run.app.store.secret())


async def test_a_receipt_is_its_tenants_own(run: Running) -> None:
    receipt = (await ask(run, "DELETE", "/threads/alone?resource=alone")).json()
    path = f"/receipts/{receipt['id']}"
    assert (await ask(run, "GET", path, FOREIGN)).status_code == 404
    assert (await ask(run, "GET", path, CREDENTIALS["admin"])).json() == receipt
    run.clock.now += RECEIPTS_KEPT_S + 1
    assert (await ask(run, "GET", path)).status_code == 404


async def test_a_tenant_forgets_itself_alone(run: Running) -> None:
    tenant = await find_tenant(run)
    assert (await ask(run, "DELETE", f"/tenants/{tenant}", FOREIGN)).status_code == 404
    assert (await ask(run, "DELETE", "/tenants/local")).status_code == 404
    assert len(await list_names(run)) == 3
    receipt = (await ask(run, "DELETE", f"/tenants/{tenant}")).json()
    assert (receipt["scope"], receipt["label"]) == ("tenant", "")
    assert receipt["forgotten"]["threads"] == 3
    assert await list_names(run) == []
    await run.chat("crates", **{"x-om-resource": "worker-7"}).say("Hello again.")
    assert await list_names(run) == ["crates"]


async def test_the_admin_forgets_any_tenant(run: Running) -> None:
    tenant = await find_tenant(run)
    admin = CREDENTIALS["admin"]
    assert (await ask(run, "DELETE", f"/tenants/{tenant}?tenant=x", admin)).status_code == 404
    assert (await ask(run, "DELETE", f"/tenants/{tenant}", admin)).status_code == 200
    assert await list_names(run) == []


async def test_a_receipt_that_cannot_be_kept(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten is forgotten, and the answer says so."""

    async def fail(*_: object) -> None:
        raise StorageError("database or disk is full")

    monkeypatch.setattr(run.app.store, "add_receipt", fail)
    answer = await ask(run, "DELETE", "/threads/alone?resource=alone")
    assert (answer.status_code, answer.json()["id"]) == (200, None)
    assert answer.json()["forgotten"]["messages"] == 2
    assert "alone" not in await list_names(run)


async def test_a_name_that_is_encoded(run: Running) -> None:
    await run.chat("t", **{"x-om-resource": "a%2Fb%20c"}).say("Hello.")
    assert (await ask(run, "GET", "/resources/a%2Fb%20c", OWN)).json()["threads"] == 1
    assert (await ask(run, "DELETE", "/resources/a%2Fb%20c", OWN)).status_code == 200
