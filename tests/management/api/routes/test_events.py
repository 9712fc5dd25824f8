"""What happened to a memory, as a list: each start with its end, each activation, by tenant."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import CRATE_REMARK, SMALL_LOG_MEMORY, Running, run_with_scripted_models

ADMIN_TOKEN = "a-long-admin-token"
ADMIN, OWN = {"x-om-admin": ADMIN_TOKEN}, {"authorization": "Bearer sk-a"}
FOREIGN = {"authorization": "Bearer sk-b"}


@pytest.fixture(params=["thread", "resource"])
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    memory = f"scope: {request.param}, {SMALL_LOG_MEMORY}"
    more = f"server: {{admin_token: {ADMIN_TOKEN}, admin_reads: false}}"
    async with run_with_scripted_models(tmp_path, memory, more=more) as running:
        yield running


async def read(
    run: Running, path: str = "/events", headers: dict[str, str] = OWN, status: int = 200
) -> dict[str, Any]:
    answer = await run.http.get(f"{run.base}/om/v1{path}", headers=headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def play(run: Running, turns: int, thread: str = "t") -> None:
    talk = run.chat(thread, **{"x-om-resource": "ada"})
    for number in range(turns):
        await talk.say(CRATE_REMARK.format(n=number))
        run.clock.now += 1
        await run.app.background.wait_idle()


def cut(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"].removeprefix("data-om-"), event["data"].get("operationType", "")


async def test_a_list_can_begin_before_the_newest_event(run: Running) -> None:
    """Those that the whole list ends with; a cursor counts for more."""
    await play(run, 12)
    events = (await read(run, "/events?limit=1000"))["items"]
    assert len(events) > 5
    assert (await read(run, "/events?newest=3"))["items"] == events[-3:]
    assert (await read(run, "/events?newest=1000"))["items"] == events
    of_thread = await read(run, "/threads/t/events?resource=ada&newest=3")
    assert of_thread["items"] == events[-3:]
    behind = await read(run, f"/events?newest=3&cursor={events[-2]['id']}")
    assert behind["items"] == events[-1:]


async def test_the_life_of_a_memory(run: Running) -> None:
    """Notes are made before they become active, a reflection before it is swapped in; every start
    has its end, and the text of an activation is that of a chunk that was told."""
    await play(run, 30)
    page = await read(run, "/events?limit=1000")
    events = page["items"]
    assert [int(e["id"]) for e in events] == sorted({int(e["id"]) for e in events})
    assert not page["has_gap"]
    assert not page["has_more"]
    starts = {e["data"]["cycleId"]: e for e in events if e["type"].endswith("-start")}
    ends = [e for e in events if e["type"].endswith("-end")]
    assert starts.keys() == {e["data"]["cycleId"] for e in ends}
    for end in ends:
        start = starts[end["data"]["cycleId"]]
        assert start["type"] == end["type"].replace("-end", "-start")
        assert int(start["id"]) < int(end["id"])
        assert start["thread"] == end["thread"]
    made = [e["data"]["observations"] for e in ends]
    active = [e["data"]["observations"] for e in events if e["type"] == "data-om-activation"]
    assert active
    assert Counter(active) <= Counter(made)
    assert {cut(e) for e in events} >= {
        ("buffering-start", "observation"),
        ("buffering-end", "observation"),
        ("activation", "observation"),
        ("buffering-end", "reflection"),
        ("activation", "reflection"),
    }


async def test_a_thread_shows_its_own(run: Running) -> None:
    """A thread's list has its events and, if it shares a log, those of the log."""
    await play(run, 12)
    await play(run, 4, "other")
    every = (await read(run, "/events?limit=1000"))["items"]
    assert {e["thread"] for e in every} >= {"t", "other"}
    own = (await read(run, "/threads/t/events?limit=1000&resource=ada"))["items"]
    assert own == [e for e in every if e["thread"] != "other"]
    assert (await read(run, "/threads/unknown/events", status=404))["error"]["code"]
    assert (await read(run, headers=FOREIGN))["items"] == []


async def test_page_by_page_and_by_type(run: Running) -> None:
    """Pages give each event once, whatever the filter; the last cursor goes on later."""
    await play(run, 12)
    every = (await read(run, "/events?limit=1000"))["items"]
    found, cursor, has_more = [], "", True
    while has_more:
        page = await read(run, f"/events?type=data-om-activation&limit=3&cursor={cursor}")
        found += page["items"]
        cursor, has_more = page["cursor"], page["has_more"]
    assert found == [e for e in every if e["type"] == "data-om-activation"]
    assert found
    await play(run, 4, "other")
    later = (await read(run, f"/events?limit=1000&cursor={cursor}"))["items"]
    assert later
    assert min(int(e["id"]) for e in later) > int(cursor)


@pytest.mark.parametrize("query", ["cursor=x", "cursor=-1", "type=data-om-nothing", "limit=0"])
async def test_what_is_no_question(run: Running, query: str) -> None:
    answer = await read(run, f"/events?{query}", status=400)
    assert answer["error"]["param"] == query.partition("=")[0]


async def test_a_cursor_of_another_database_is_told_of_a_gap(run: Running) -> None:
    await play(run, 3)
    first = await read(run)
    beyond = await read(run, f"/events?cursor={int(first['cursor']) + 1000}")
    assert beyond["has_gap"]
    assert beyond["items"] == first["items"]


async def test_the_admin_token_without_text_reads_none(run: Running) -> None:
    """With `admin_reads: false` the texts are null, and nothing of them stands elsewhere."""
    await play(run, 30)
    await run.http.patch(
        f"{run.base}/om/v1/threads/t?resource=ada", headers=OWN, json={"title": "zanzibar"}
    )
    own = (await read(run, "/events?limit=1000"))["items"]
    assert "zanzibar" in json.dumps(own)
    admin = (await read(run, "/events?limit=1000", ADMIN))["items"]
    assert [e["id"] for e in admin] == [e["id"] for e in own]
    for word in ("zanzibar", "weighs", "Crate"):
        assert word not in json.dumps(admin)
    ends = [e["data"] for e in admin if e["type"].endswith("-end")]
    assert {data["observations"] for data in ends} == {None}


async def test_what_a_person_does_is_told(run: Running) -> None:
    """A title, a threshold and an undo are events; a forgotten thread leaves its label only."""
    await play(run, 30)
    url = f"{run.base}/om/v1/threads/t"
    status = (await run.http.get(f"{url}?resource=ada", headers=OWN)).json()
    position = (await read(run, "/events?limit=1000"))["cursor"]
    change = {"observation": {"message_tokens": 9000}}
    for method, path, body in (
        ("PATCH", "", {"title": "Crates"}),
        ("PATCH", "/settings", change),
        ("PATCH", "/settings", change),  # changes nothing
        ("POST", "/undo", {}),
    ):
        answer = await run.http.request(method, f"{url}{path}?resource=ada", headers=OWN, json=body)
        assert answer.status_code == 200, answer.text
    title, settings, undo = (await read(run, f"/events?cursor={position}"))["items"]
    assert title["data"]["newTitle"] == "Crates"
    assert settings["data"]["action"] == "settings"
    assert undo["data"]["action"] == "undone"
    assert undo["data"]["removedIds"]
    assert undo["data"]["addedIds"]
    await run.http.request("DELETE", f"{url}?resource=ada", headers=OWN)
    [gone] = (await read(run))["items"]
    assert gone["type"] == "data-om-forgotten"
    assert gone["data"]["label"] == status["label"]
    assert (gone["resource"], gone["thread"]) == ("", "")
