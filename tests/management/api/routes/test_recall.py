"""People look up original messages over the API."""

from __future__ import annotations

from typing import Any

from tests.e2e.running import Running
from tests.management.api.test_admin_api import CREDENTIALS, ask


async def recall(run: Running, body: dict[str, Any], **options: Any) -> Any:
    path = "/threads/crates/recall?resource=harbour"
    answer = await ask(run, "POST", path, options.get("headers", CREDENTIALS["own"]), body)
    return answer.json() | {"status": answer.status_code}


async def test_messages_in_order(harbour_run: Running) -> None:
    first = await recall(harbour_run, {"limit": 2})
    assert first["messages"].startswith("m1 to m2 of m1 to m6; more: page 2\n[m1] user, ")
    assert (first["count"], first["hasNextPage"], first["hasPrevPage"]) == (2, True, False)
    assert [item["seq"] for item in first["items"]] == [1, 2]
    assert first["items"][0]["excerpt"] == "Crate 0 weighs 0 kg."
    last = await recall(harbour_run, {"limit": 2, "page": -1, "cursor": "m6"})
    assert [item["seq"] for item in last["items"]] == [5, 6]
    assert (last["hasNextPage"], last["hasPrevPage"], last["hasMore"]) == (False, True, True)
    part = await recall(harbour_run, {"cursor": "m1", "partIndex": 0})
    assert (part["truncated"], part["charOffset"]) == (False, None)


async def test_search_and_threads(harbour_run: Running) -> None:
    """The raw tail is searched too. Names are the real ones, and nothing is another tenant's."""
    found = await recall(harbour_run, {"mode": "search", "query": "honey"})
    best = found["items"][0]
    assert (best["thread"], best["seq"]) == ("bees", 1)
    assert "canary" not in str(found).lower()
    assert best["score"] > 0
    listed = await recall(harbour_run, {"mode": "threads"})
    assert {item["thread"]: item["messages"] for item in listed["items"]} == {
        "crates": 6,
        "bees": 2,
    }
    label = listed["items"][0]["label"]
    assert (await recall(harbour_run, {"threadId": label[:8]}))["status"] == 200


async def test_what_cannot_be_looked_up(harbour_run: Running) -> None:
    foreign = await ask(
        harbour_run, "GET", "/threads/bees?resource=harbour", CREDENTIALS["foreign"]
    )
    label = foreign.json()["label"]
    for body, status, words in (
        ({"threadId": label}, 404, f"no conversation {label}"),
        ({"cursor": "m9"}, 404, "there is no message m9"),
        ({"mode": "search"}, 400, "search needs a query"),
        ({"mode": "find"}, 400, "mode takes one of"),
    ):
        answer = await recall(harbour_run, body)
        assert answer["status"] == status
        assert words in answer["error"]["message"]
    assert (await recall(harbour_run, {}, headers=CREDENTIALS["foreign"]))["status"] == 404


async def test_what_was_taken_back_is_read_on_request(harbour_run: Running) -> None:
    talk = harbour_run.chat("edited", **{"x-om-resource": "harbour"})
    await talk.say("Crate 8 is red.")
    await talk.say("Crate 9 is red.")
    del talk.history[-2:]
    await talk.say("Crate 9 is blue.")
    path = "/threads/edited/recall?resource=harbour"
    for body, states in (
        ({}, ["live"] * 4),
        ({"superseded": True}, ["live"] * 2 + ["superseded"] * 2 + ["live"] * 2),
    ):
        answer = await ask(harbour_run, "POST", path, CREDENTIALS["own"], body)
        assert [item["state"] for item in answer.json()["items"]] == states
