"""People find threads: the most recent first, by the beginning of a name, by state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from om_proxy.management.api.routes.threads import KEYLESS_HINT
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ADMIN_TOKEN, CREDENTIALS, OWN, ask


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        for name in ("crates", "docks", "cranes"):
            await running.chat(name).say("Where is it?")
            running.clock.now += 60
        yield running


async def list_names(run: Running, query: str, headers: dict[str, str] = OWN) -> list[str]:
    answer = await ask(run, "GET", f"/threads{query}", headers)
    assert answer.status_code == 200, answer.text
    return [line["thread"] for line in answer.json()["items"]]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["cranes", "crates", "docks"]),
        ("?order=recent", ["cranes", "docks", "crates"]),
        ("?q=cra", ["cranes", "crates"]),
        ("?q=Cra", []),
        ("?q=", ["cranes", "crates", "docks"]),
        ("?q=crat&order=recent", ["crates"]),
        ("?state=active", ["cranes", "crates", "docks"]),
        ("?state=observed", []),
        ("?state=parked", []),
        ("?resource=docks", ["docks"]),
    ],
)
async def test_lists(run: Running, query: str, names: list[str]) -> None:
    assert await list_names(run, query) == names
    joiner = "&" if "?" in query else "?"
    tenant = (await ask(run, "GET", "/threads")).json()["items"][0]["tenant"]
    admin = CREDENTIALS["admin"]
    assert await list_names(run, query, admin) == names
    assert await list_names(run, f"{query}{joiner}tenant={tenant}", admin) == names
    assert await list_names(run, f"{query}{joiner}tenant=other", admin) == []


async def test_an_empty_list_without_a_key(tmp_path: Path) -> None:
    """A hint says what would be listed with a key. It is the same whether other tenants have
    threads or not, and a caller with a key gets none."""
    async with run_with_scripted_models(tmp_path) as run:
        before = (await ask(run, "GET", "/threads", {})).json()
        await run.chat("docks").say("Where is it?")
        after = (await ask(run, "GET", "/threads", {})).json()
        foreign = (await ask(run, "GET", "/threads", CREDENTIALS["foreign"])).json()
        own = (await ask(run, "GET", "/threads")).json()
    assert before == after == foreign | {"hint": KEYLESS_HINT}
    assert "hint" not in own


async def test_a_title_is_found(run: Running) -> None:
    await ask(run, "PATCH", "/threads/docks", OWN, {"title": "Holidays"})
    assert await list_names(run, "?q=Holi") == ["docks"]


async def test_windows_of_a_line(run: Running) -> None:
    """A line shows what the thread's own page shows."""
    await ask(
        run, "PATCH", "/threads/docks/settings", OWN, {"observation": {"message_tokens": 9_000}}
    )
    [line] = (await ask(run, "GET", "/threads?q=docks")).json()["items"]
    status = (await ask(run, "GET", "/threads/docks")).json()
    assert line["pending_tokens"] == status["messages"]["pending_tokens"] > 0
    assert line["pending_threshold"] == status["messages"]["threshold"]
    assert line["note_tokens"] == status["observations"]["tokens"]
    assert line["note_threshold"] == status["observations"]["threshold"]


@pytest.mark.parametrize("query", ["order=name", "order=recent&q=c", "order=recent&state=active"])
async def test_a_cursor_belongs_to_its_list(run: Running, query: str) -> None:
    cursor = (await ask(run, "GET", "/threads?order=recent&limit=1")).json()["cursor"]
    answer = await ask(run, "GET", f"/threads?{query}&limit=1&cursor={cursor}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cursor")
    foreign = await ask(
        run, "GET", f"/threads?order=recent&limit=1&cursor={cursor}", CREDENTIALS["foreign"]
    )
    assert foreign.status_code == 400


@pytest.mark.parametrize("query", ["order=oldest", "state=good", "limit=0"])
async def test_odd_queries(run: Running, query: str) -> None:
    answer = await ask(run, "GET", f"/threads?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (
        400,
        query.split("=", maxsplit=1)[0],
    )


async def test_condensed_tokens(tmp_path: Path) -> None:
    """A thread's page says how many tokens of its notes the reflector wrote."""
    memory = "observation: {message_tokens: 1200, buffer_tokens: 300}, reflection: {observation_tokens: 900}"
    async with run_with_scripted_models(tmp_path, memory) as run:
        chat = run.chat("docks")
        for number in range(24):
            await chat.say(f"Crate {number} is at dock {number + 7}. {'And so on. ' * 12}")
            await run.app.background.wait_idle()
        observations = (await ask(run, "GET", "/threads/docks")).json()["observations"]
        log = (await run.memory()).log
    assert observations["condensed_tokens"] == log.reflected_tokens
    assert 0 < log.reflected_tokens < observations["tokens"]


@pytest.mark.parametrize("overrides", [b"x", b"[]", b'{"model": "openai/other"}', b"\xff"])
async def test_a_row_with_broken_settings_breaks_no_list(run: Running, overrides: bytes) -> None:
    """Its own page shows none, and they can be set anew."""
    store = run.app.store
    [key] = [info.key for info in await store.threads(None) if info.key.thread == "docks"]
    memory = await store.load(key)
    await store.commit(memory, replace(memory, overrides=overrides))
    for order in ("name", "recent"):
        names = await list_names(run, f"?order={order}", CREDENTIALS["admin"])
        assert sorted(names) == ["cranes", "crates", "docks"]
    for page in ("/threads/docks", "/threads/docks/settings", "/resources", "/stats"):
        answer = await ask(run, "GET", page)
        assert answer.status_code == 200, page
    assert (await ask(run, "GET", "/threads/docks")).json()["settings"] == {}
    changed = {"observation": {"message_tokens": 9_000}}
    answer = await ask(run, "PATCH", "/threads/docks/settings", OWN, changed)
    assert answer.status_code == 200
    assert (await ask(run, "GET", "/threads/docks")).json()["settings"] == changed
