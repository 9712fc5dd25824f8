"""The figures of what memory saves and costs, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from om_proxy.engine.turns.engine import Engine
from om_proxy.memory.ledger import Account
from om_proxy.storage.values.records import LedgerSum
from tests.e2e.running import Running, run_with_scripted_models
from tests.e2e.test_ledger import ACTOR, ask, bill, tokens_of

ADMIN = {"x-om-admin": "a-long-admin-token"}
DAY = 86_400
BEFORE = "2023-11-14"  # of the clock that a running proxy begins with


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = "server: {admin_token: a-long-admin-token}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        yield running


async def get(run: Running, path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    headers = headers or {"authorization": "Bearer sk-a"}
    answer = await run.http.get(f"{run.base}/om/v1{path}", headers=headers)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def refuse(run: Running, path: str) -> tuple[int, str]:
    answer = await run.http.get(f"{run.base}/om/v1{path}", headers={"authorization": "Bearer sk-a"})
    return answer.status_code, answer.json()["error"]["param"]


async def test_what_a_thread_has_cost(run: Running) -> None:
    """The list, the thread and the figures agree with the provider's bill."""
    chat = run.chat("crates")
    for text in ("one", "two", "three"):
        await ask(chat, text)
    cost = bill(run.models.requests_to(ACTOR))
    tokens = tokens_of(run.models.requests_to(ACTOR))
    ledger = (await get(run, "/threads/crates"))["ledger"]
    assert ledger["saving"] == {"net": 0, "baseline": cost, "cost": cost, "memory_cost": 0}
    assert ledger["tokens"] == asdict(tokens)
    assert (ledger["turns"], ledger["priced"], ledger["shadow"]) == (3, True, None)
    (line,) = (await get(run, "/threads"))["items"]
    assert line["net_saving"] == 0
    for by, names in (
        ("day", {"day": BEFORE}),
        ("model", {"model": ACTOR}),
        ("resource", {"resource": "crates"}),
        ("thread", {"resource": "crates", "thread": "crates"}),
    ):
        answer = await get(run, f"/stats?by={by}")
        (item,) = answer["items"]
        assert (answer["by"], item["ledger"]) == (by, ledger)
        assert {name: item[name] for name in names} == names
        # threads keep their own sums, each as of its newest stored turn
        as_of = None if by == "thread" else run.clock.now
        assert (answer["cursor"], answer["as_of"]) == (None, as_of)


async def test_how_turns_were_served(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the proxy added to them, as their receipts say, and how many memory failed in."""

    async def fail(*_: object) -> None:
        raise OSError("the memory is gone")

    chat, added_ms = run.chat("crates"), 0.0
    body = {"model": ACTOR, "messages": [{"role": "user", "content": "hello"}]}
    for turn in range(3):
        if turn == 2:
            monkeypatch.setattr(Engine, "open_turn", fail)
        url = f"{run.base}/v1/chat/completions"
        answer = await run.http.post(url, json=body, headers=chat.headers)
        assert (answer.headers["x-om-status"] == "degraded") == (turn == 2)
        added_ms += float(answer.headers["x-om-overhead-ms"])
    await run.app.background.wait_idle()
    (day,) = (await get(run, "/stats"))["items"]
    assert (day["ledger"]["turns"], day["ledger"]["degraded"]) == (3, 1)
    assert day["ledger"]["overhead_us"] == pytest.approx(added_ms * 1_000, abs=30)


async def test_a_saving_without_a_price_is_not_zero(run: Running) -> None:
    body = {"model": "nobody-lists-it", "messages": [{"role": "user", "content": "hello"}]}
    chat = run.chat("crates")
    url = f"{run.base}/v1/chat/completions"
    assert (await run.http.post(url, json=body, headers=chat.headers)).status_code == 200
    (line,) = (await get(run, "/threads"))["items"]
    assert line["net_saving"] is None


async def test_figures_are_a_tenants_own(run: Running) -> None:
    """A caller sees its own; the admin token sees all, or those of the tenant it names."""
    for key in ("sk-a", "sk-b"):
        await ask(run.chat("t", key=key), "hello")
    for by in ("day", "model", "resource", "thread"):
        own = [
            (await get(run, f"/stats?by={by}", h))["items"]
            for h in ({"authorization": f"Bearer {k}"} for k in ("sk-a", "sk-b"))
        ]
        assert [sum(item["ledger"]["turns"] for item in items) for items in own] == [1, 1]
        every = (await get(run, f"/stats?by={by}", ADMIN))["items"]
        assert sum(item["ledger"]["turns"] for item in every) == 2
    tenants = {item["tenant"] for item in (await get(run, "/stats?by=resource", ADMIN))["items"]}
    for tenant in tenants:
        one = await get(run, f"/stats?tenant={tenant}", ADMIN)
        assert one["items"][0]["ledger"]["turns"] == 1
    assert len(tenants) == 2


@pytest.mark.parametrize("by", ["day", "model", "resource", "thread"])
async def test_figures_come_in_pages(run: Running, by: str) -> None:
    """Each page begins where the one before ended."""
    for number in range(3):
        chat = run.chat(f"t{number}")
        chat.history = [{"role": "user", "content": "hello"}]
        url = f"{run.base}/v1/chat/completions"
        body = {"model": f"model-{number}", "messages": chat.history}
        assert (await run.http.post(url, json=body, headers=chat.headers)).status_code == 200
        run.clock.now += DAY
    whole = (await get(run, f"/stats?by={by}"))["items"]
    assert len(whole) == 3
    pages, cursor = [], ""
    while True:
        page = await get(run, f"/stats?by={by}&limit=1" + (f"&cursor={cursor}" if cursor else ""))
        if not page["items"]:
            break
        pages += page["items"]
        cursor = (page["cursor"] or "").replace("\t", "%09")
        assert cursor
    assert pages == whole


async def test_one_resource_and_one_model(run: Running) -> None:
    """Each takes its part of every figure, also page by page."""
    for resource, turns in (("boat", 2), ("van", 3)):
        chat = run.chat(resource)
        for number in range(turns):
            await ask(chat, f"question {number}")
            run.clock.now += DAY
    for query, turns in (
        (f"model={ACTOR}", 5),
        ("resource=van", 3),
        (f"resource=boat&model={ACTOR}", 2),
        ("model=another", 0),
    ):
        for by in ("day", "model", "resource"):
            items = (await get(run, f"/stats?by={by}&{query}"))["items"]
            assert sum(item["ledger"]["turns"] for item in items) == turns
    (line,) = (await get(run, "/stats?by=thread&resource=van"))["items"]
    assert (line["thread"], line["ledger"]["turns"]) == ("van", 3)
    cursor = (await get(run, "/stats?resource=van&limit=1"))["cursor"]
    rest = await get(run, f"/stats?resource=van&cursor={cursor}")
    assert [item["day"] for item in rest["items"]] == ["2023-11-17", "2023-11-18"]
    assert (await refuse(run, f"/stats?cursor={cursor}")) == (400, "cursor")


async def test_a_span_of_days(run: Running) -> None:
    """`from` and `to` name days by any moment in them."""
    chat, start = run.chat(), run.clock.now
    for number in range(4):
        run.clock.now = start + number * DAY
        await ask(chat, f"day {number}")
    answer = await get(run, f"/stats?from={start + DAY}&to={start + 2 * DAY}")
    assert [item["day"] for item in answer["items"]] == ["2023-11-15", "2023-11-16"]
    one = await get(run, f"/stats?by=model&from={start + 3 * DAY}")
    assert one["items"][0]["ledger"]["turns"] == 1
    assert (await get(run, f"/stats?to={start - DAY}"))["items"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("by=hour", "by"),
        ("from=soon", "from"),
        ("from=1e300", "from"),
        ("by=thread&from=1", "from"),
        ("by=thread&to=1", "to"),
        ("by=thread&model=m", "model"),
        ("from=1&to=0", "to"),
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
        ("by=model&cursor=a%09b", "cursor"),
        ("by=resource&cursor=x", "cursor"),
        ("by=resource&cursor=other%09x", "cursor"),
        ("by=thread&cursor=x", "cursor"),
        ("since=1", "since"),
    ],
)
async def test_odd_queries(run: Running, query: str, param: str) -> None:
    assert await refuse(run, f"/stats?{query}") == (400, param)


async def test_forgotten_resources_lose_their_name(run: Running) -> None:
    """What was spent stays, under no name."""
    await ask(run.chat("secret-plan"), "hello")
    before = await get(run, "/stats?by=resource")
    answer = await run.http.delete(
        f"{run.base}/om/v1/threads/secret-plan", headers={"authorization": "Bearer sk-a"}
    )
    assert answer.status_code == 200
    after = await get(run, "/stats?by=resource")
    assert [item["resource"] for item in before["items"]] == ["secret-plan"]
    assert [item["resource"] for item in after["items"]] == [""]
    assert after["items"][0]["ledger"] == before["items"][0]["ledger"]
    assert (await get(run, "/stats?by=thread"))["items"] == []


async def test_a_store_that_is_away(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted waits, and `as_of` says up to when the figures are complete."""
    from om_proxy.common.errors import StorageError

    first = run.clock.now
    await ask(run.chat(), "hello")

    async def fail(batch: object) -> None:
        raise StorageError("database or disk is full")

    monkeypatch.setattr(run.app.ledger_writer._store, "add_to_ledger", fail)
    run.clock.now += 100
    answer = await get(run, "/stats")
    assert (answer["items"], answer["as_of"]) == ([], first)
    monkeypatch.undo()
    answer = await get(run, "/stats")
    assert (answer["items"][0]["ledger"]["turns"], answer["as_of"]) == (1, run.clock.now)


async def test_the_end_of_the_process_writes_what_waits(tmp_path: Path) -> None:
    for _ in range(2):
        async with run_with_scripted_models(tmp_path) as run:
            await ask(run.chat(), "hello")
    async with run_with_scripted_models(tmp_path) as run:
        (day,) = (await get(run, "/stats"))["items"]
        assert day["ledger"]["turns"] == 2


def test_kinds_of_calls_stand_apart() -> None:
    """A thin client's comparison is never a saving, and memory's calls count on their side."""
    from om_proxy.management.api.routes.stats import describe_sums

    turn = Account(calls=1, cost=10, baseline_cost=100, input=7, baseline_input=70)
    call = Account(calls=1, cost=3, input=5, unpriced=1)
    group = (20_000,)
    figures = describe_sums(
        [
            LedgerSum(group, "actor", "full", turn),
            LedgerSum(group, "actor", "partial", turn.add(turn)),
            LedgerSum(group, "observer", "full", call),
            LedgerSum(group, "reflector", "full", call),
            LedgerSum(group, "observer", "partial", call),
        ]
    )
    assert figures.saving.net == 100 - 10 - 6
    assert figures.versus_whole_history.net == 200 - 20 - 3
    assert (figures.turns, figures.memory_calls, figures.priced) == (3, 3, False)
    assert (figures.tokens.input, figures.memory_tokens.input) == (21, 15)
    assert figures.baseline_tokens.input == 210
