"""People search original messages, and notes, over the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.running import Running, run_with_scripted_models
from tests.edge.admin.test_admin_api import ask

OTHER_KEY = {"authorization": "Bearer sk-b"}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path) as running:
        talk = running.chat("crates", **{"x-om-resource": "harbour"})
        for number in range(3):
            await talk.say(f"Crate {number} weighs {number} kg.")
        await running.chat("bees", **{"x-om-resource": "harbour"}).say("The hives hold honey.")
        foreign = running.chat("bees", key="sk-b", **{"x-om-resource": "harbour"})
        await foreign.say("Canary honey.")
        yield running


async def test_search_in_messages(run: Running) -> None:
    path = "/search?q=crate+zeta&resource=harbour"
    found = (await ask(run, "GET", path)).json()
    assert {item["thread"] for item in found["items"]} == {"crates"}
    assert found["total"] == len(found["items"]) >= 3
    assert found["missing"] == ["zeta"]
    best = found["items"][0]
    assert [best["excerpt"][mark["start"] : mark["end"]] for mark in best["marks"]] == ["Crate"]
    listed = (await ask(run, "GET", "/threads?resource=harbour")).json()["items"]
    assert (best["tenant"], best["resource"]) == (listed[0]["tenant"], "harbour")
    users = (await ask(run, "GET", f"{path}&role=user&limit=2")).json()
    assert [item["role"] for item in users["items"]] == ["user", "user"]
    assert (await ask(run, "GET", f"{path}&thread=bees")).json()["items"] == []
    assert (await ask(run, "GET", f"{path}&before=2001-01-01")).json()["items"] == []
    assert (await ask(run, "GET", f"{path}&before=soon")).status_code == 400
    assert (await ask(run, "GET", "/search?q=x&resource=nobody")).json()["items"] == []
    own = (await ask(run, "GET", "/search?q=canary&resource=harbour")).json()
    assert own["items"] == []
    foreign = (await ask(run, "GET", "/search?q=canary&resource=harbour", OTHER_KEY)).json()
    assert [item["thread"] for item in foreign["items"]][:1] == ["bees"]


async def test_search_in_notes(run: Running) -> None:
    """Those of the caller's tenant; what is asked of messages alone is refused."""
    path = "/search?q=crate&in=notes"
    empty = (await ask(run, "GET", path)).json()
    assert (empty["items"], empty["notes"], empty["total"], empty["searched"]) == ([], [], 0, 1)
    assert (await ask(run, "GET", f"{path}&role=user")).status_code == 400
    assert (await ask(run, "GET", "/search?q=crate&in=titles")).status_code == 400
