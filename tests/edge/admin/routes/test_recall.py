"""People look up and search original messages over the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Running, run_with_scripted_models
from tests.edge.admin.test_admin_api import CREDENTIALS, ask

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


async def recall(run: Running, body: dict[str, Any], **options: Any) -> Any:
    path = "/threads/crates/recall?resource=harbour"
    answer = await ask(run, "POST", path, options.get("headers", CREDENTIALS["own"]), body)
    return answer.json() | {"status": answer.status_code}


async def test_messages_in_order(run: Running) -> None:
    first = await recall(run, {"limit": 2})
    assert first["messages"].startswith("m1 to m2 of m1 to m6; more: page 2\n[m1] user, ")
    assert (first["count"], first["hasNextPage"], first["hasPrevPage"]) == (2, True, False)
    assert [item["seq"] for item in first["items"]] == [1, 2]
    assert first["items"][0]["excerpt"] == "Crate 0 weighs 0 kg."
    last = await recall(run, {"limit": 2, "page": -1, "cursor": "m6"})
    assert [item["seq"] for item in last["items"]] == [5, 6]
    assert (last["hasNextPage"], last["hasPrevPage"], last["hasMore"]) == (False, True, True)
    part = await recall(run, {"cursor": "m1", "partIndex": 0})
    assert (part["truncated"], part["charOffset"]) == (False, None)


async def test_search_and_threads(run: Running) -> None:
    """The raw tail is searched too. Names are the real ones, and nothing is another tenant's."""
    found = await recall(run, {"mode": "search", "query": "honey"})
    best = found["items"][0]
    assert (best["thread"], best["seq"]) == ("bees", 1)
    assert "canary" not in str(found).lower()
    assert best["score"] > 0
    listed = await recall(run, {"mode": "threads"})
    assert {item["thread"]: item["messages"] for item in listed["items"]} == {
        "crates": 6,
        "bees": 2,
    }
    label = listed["items"][0]["label"]
    assert (await recall(run, {"threadId": label[:8]}))["status"] == 200


async def test_what_cannot_be_looked_up(run: Running) -> None:
    foreign = await ask(run, "GET", "/threads/bees?resource=harbour", OTHER_KEY)
    label = foreign.json()["label"]
    for body, status, words in (
        ({"threadId": label}, 404, f"no conversation {label}"),
        ({"cursor": "m9"}, 404, "there is no message m9"),
        ({"mode": "search"}, 400, "search needs a query"),
        ({"mode": "find"}, 400, "mode takes one of"),
    ):
        answer = await recall(run, body)
        assert answer["status"] == status
        assert words in answer["error"]["message"]
    assert (await recall(run, {}, headers=OTHER_KEY))["status"] == 404


async def test_search_by_itself(run: Running) -> None:
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
