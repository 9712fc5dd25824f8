"""What people start beside chat waits in line by tenant, and is refused honestly where it is full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.wire.server.capacity.work_queues import (
    EVENT_STREAM,
    EXPORT,
    PAGE,
    SEARCH,
    UNKNOWN_KEYS,
    WORK_KINDS,
    WorkKind,
)
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ADMIN_TOKEN, OWN, ask_route
from tests.support.waiting import until

SSE = {"accept": "text/event-stream"}
ADMIN = {"x-om-admin": ADMIN_TOKEN}
MCP_CALLS: dict[str, dict[str, str]] = {
    "search_memory": {"query": "crate"},
    "read_messages": {"thread": "crates", "resource": "crates"},
    "list_threads": {},
    "get_notes": {"resource": "crates"},
}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        for key in ("sk-a", "sk-b"):
            await running.chat("crates", key=key).say("Where is crate 7?")
        yield running


@asynccontextmanager
async def fill(run: Running, kind: WorkKind, tenant: str) -> AsyncIterator[None]:
    """Take all slots that the tenant may have, and all its places in the line."""
    queue = run.app.work_queues[kind]
    with ExitStack() as slots:
        for _ in range(kind.of_tenant):
            slots.enter_context(await queue.take(tenant))
        waiting = [asyncio.create_task(queue.take(tenant)) for _ in range(kind.waiting)]
        await asyncio.sleep(0)
        assert queue.waiting_count == kind.waiting
        yield
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def find_tenant(run: Running, key: str = "sk-a") -> str:
    answer = await run.http.get(
        f"{run.base}/om/v1/threads", headers={"authorization": f"Bearer {key}"}
    )
    tenant: str = answer.json()["items"][0]["tenant"]
    return tenant


def assert_refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "om_overloaded")
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-should-retry"] == "true"


@pytest.mark.parametrize("kind", WORK_KINDS, ids=lambda kind: kind.name)
async def test_each_route_waits_in_the_line_of_its_kind(run: Running, kind: WorkKind) -> None:
    """A full line refuses its tenant's next request at once, of every route; others are served."""
    tenant = await find_tenant(run)
    # a path that names a tenant is refused before it, where it names another one
    routes = [r for r in ADMIN_ROUTES if r.work == kind and "{tenant}" not in r.path]
    async with fill(run, kind, tenant):
        for route in routes:
            assert_refused(await ask_route(run, route, OWN))
        if kind == EXPORT:
            assert_refused(await run.http.get(f"{run.base}/om/v1/export", headers=OWN))
        if kind == EVENT_STREAM:
            assert_refused(await run.http.get(f"{run.base}/om/v1/events", headers=OWN | SSE))
        for route in routes[:1]:
            await assert_served(run, route)
    assert run.app.work_queues[kind].running_count == 0


async def assert_served(run: Running, route: AdminRoute) -> None:
    for headers, query in (({"authorization": "Bearer sk-b"}, ""), (ADMIN, "tenant=nobody")):
        assert (await ask_route(run, route, headers, query)).status_code != 503


@pytest.mark.parametrize("tool", MCP_CALLS)
async def test_a_call_of_a_tool_waits_too(run: Running, tool: str) -> None:
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": MCP_CALLS[tool]},
    }
    kind = SEARCH if tool == "search_memory" else PAGE
    url, tenant = f"{run.base}/om/mcp", await find_tenant(run)
    async with fill(run, kind, tenant):
        assert_refused(await run.http.post(url, json=message, headers=OWN))
        ping = await run.http.post(url, json={**message, "method": "ping"}, headers=OWN)
        assert ping.status_code == 200  # it reads nothing
    assert (await run.http.post(url, json=message, headers=OWN)).status_code == 200


async def test_a_client_that_leaves_the_line_leaves_nothing(run: Running) -> None:
    """Its request is not carried out."""
    queue, tenant = run.app.work_queues[PAGE], await find_tenant(run)

    async def has_waiting(count: int) -> bool:
        return queue.waiting_count == count

    with ExitStack() as slots:
        for _ in range(PAGE.of_tenant):
            slots.enter_context(await queue.take(tenant))
        asking = asyncio.create_task(run.http.get(f"{run.base}/om/v1/threads", headers=OWN))
        await until(lambda: has_waiting(1))
        asking.cancel()
        await until(lambda: has_waiting(0))
    assert queue.running_count == 0


async def test_made_up_keys_hold_few_streams(run: Running) -> None:
    """Seventy of them have four together. A key that was accepted once has its own, and so has the
    admin."""
    async with AsyncExitStack() as streams:

        async def count_served(headers: Mapping[str, str], times: int) -> int:
            answers = [
                await streams.enter_async_context(
                    run.http.stream("GET", f"{run.base}/om/v1/events", headers={**headers, **SSE})
                )
                for _ in range(times)
            ]
            return sum(answer.status_code == 200 for answer in answers)

        made_up = [{"authorization": f"Bearer made-up-{number}"} for number in range(70)]
        assert sum([await count_served(headers, 1) for headers in made_up]) == 4
        assert await count_served(OWN, EVENT_STREAM.of_tenant + 1) == EVENT_STREAM.of_tenant
        assert await count_served(ADMIN, 1) == 1


async def test_made_up_keys_share_the_slots_of_one_tenant(run: Running) -> None:
    """More of them wait no less for a search than one of them."""
    kind, queue = SEARCH, run.app.work_queues[SEARCH]
    async with fill(run, kind, UNKNOWN_KEYS):
        made_up = {"authorization": "Bearer made-up"}
        url = f"{run.base}/om/v1/search?q=crate"
        assert_refused(await run.http.get(url, headers=made_up))
        assert (await run.http.get(url, headers=OWN)).status_code == 200
    assert queue.running_count == 0
