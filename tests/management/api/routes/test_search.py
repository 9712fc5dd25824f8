"""People search original messages, and notes, over the API."""

from __future__ import annotations

from typing import Any

import pytest

from om_proxy.engine.recall.searching import MessageSearch, SearchResult
from om_proxy.memory.model import Key
from tests.e2e.running import Running
from tests.management.api.test_admin_api import CREDENTIALS, ask


async def test_search_in_messages(harbour_run: Running) -> None:
    path = "/search?q=crate+zeta&resource=harbour"
    found = (await ask(harbour_run, "GET", path)).json()
    assert {item["thread"] for item in found["items"]} == {"crates"}
    assert found["total"] == len(found["items"]) >= 3
    assert found["missing"] == ["zeta"]
    best = found["items"][0]
    assert [best["excerpt"][mark["start"] : mark["end"]] for mark in best["marks"]] == ["Crate"]
    listed = (await ask(harbour_run, "GET", "/threads?resource=harbour")).json()["items"]
    assert (best["tenant"], best["resource"]) == (listed[0]["tenant"], "harbour")
    users = (await ask(harbour_run, "GET", f"{path}&role=user&limit=2")).json()
    assert [item["role"] for item in users["items"]] == ["user", "user"]
    assert (await ask(harbour_run, "GET", f"{path}&thread=bees")).json()["items"] == []
    assert (await ask(harbour_run, "GET", f"{path}&before=2001-01-01")).json()["items"] == []
    assert (await ask(harbour_run, "GET", f"{path}&before=soon")).status_code == 400
    assert (await ask(harbour_run, "GET", "/search?q=x&resource=nobody")).json()["items"] == []
    own = (await ask(harbour_run, "GET", "/search?q=canary&resource=harbour")).json()
    assert own["items"] == []
    foreign = (
        await ask(harbour_run, "GET", "/search?q=canary&resource=harbour", CREDENTIALS["foreign"])
    ).json()
    assert [item["thread"] for item in foreign["items"]][:1] == ["bees"]


async def test_what_is_not_searched_in_time_is_told(
    harbour_run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resources before it are searched, and their number is in the answer."""
    await harbour_run.chat("crates", **{"x-om-resource": "yard"}).say("Crate 9 is red.")
    search = MessageSearch.search

    async def run_out_of_time(self: MessageSearch, key: Key, *rest: Any) -> SearchResult:
        if key.resource == "yard":
            raise TimeoutError
        return await search(self, key, *rest)

    whole = (await ask(harbour_run, "GET", "/search?q=crate")).json()
    assert (whole["searched"], whole["left_out"]) == (2, False)
    monkeypatch.setattr(MessageSearch, "search", run_out_of_time)
    found = (await ask(harbour_run, "GET", "/search?q=crate")).json()
    assert (found["searched"], found["left_out"]) == (1, True)
    assert {item["resource"] for item in found["items"]} == {"harbour"}


async def test_search_in_notes(harbour_run: Running) -> None:
    """Those of the caller's tenant; what is asked of messages alone is refused."""
    path = "/search?q=crate&in=notes"
    empty = (await ask(harbour_run, "GET", path)).json()
    assert (empty["items"], empty["notes"], empty["total"], empty["searched"]) == ([], [], 0, 1)
    assert (await ask(harbour_run, "GET", f"{path}&role=user")).status_code == 400
    assert (await ask(harbour_run, "GET", "/search?q=crate&in=titles")).status_code == 400
