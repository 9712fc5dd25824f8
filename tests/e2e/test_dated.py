"""Messages that say when they were said, on every store: a conversation that was held elsewhere, and
single ones, of programs without a chat."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.testing.scripted import OBSERVER, message_text
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import OWN, ask
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

LONG = "Crate {n} weighs {n} kilos, was painted and goes to dock {n} at Quarry Steps. " * 8
MAY_1 = datetime(2023, 5, 1, 9, 0, tzinfo=UTC).timestamp()
DAY_S = 86_400.0


def said(n: int, at: float, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": LONG.format(n=n), "created_at": at}


def led(turns: int) -> list[dict[str, Any]]:
    """A turn a day, each answered a minute later."""
    return [
        message
        for n in range(turns)
        for message in (
            said(n, MAY_1 + n * DAY_S),
            {
                "role": "assistant",
                "content": f"Noted {n}.",
                "created_at": f"2023-05-{1 + n:02}T11:01:00+02:00",
            },
        )
    ]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    with ExitStack() as stack:
        storage = None
        if request.param == "postgres":
            url = find_postgres_url()
            storage = f'url: "{url}", prefix: {stack.enter_context(own_schema(url))}'
        if request.param == "redis":
            url = find_redis_url()
            storage = f'url: "{url}", prefix: {stack.enter_context(own_prefix(url))}'
        async with run_with_scripted_models(tmp_path, storage=storage) as running:
            await running.chat("greeting").say("Hello.")
            yield running


async def send(
    run: Running, messages: list[dict[str, Any]], thread: str = "old", **headers: str
) -> httpx.Response:
    body = {"model": "scripted-actor", "messages": messages}
    return await ask(run, "POST", f"/threads/{thread}/messages", OWN | headers, body)


async def count(answer: httpx.Response) -> tuple[int, int]:
    assert answer.status_code == 200, answer.text
    return answer.json()["created"], answer.json()["same"]


async def list_stored(run: Running, thread: str = "old") -> list[tuple[str, float]]:
    items = (await ask(run, "GET", f"/threads/{thread}/messages")).json()["items"]
    assert not any("created_at" in item["raw"] for item in items)
    return [(item["raw"]["content"], item["at"]) for item in items]


async def test_a_dated_conversation_is_noted_with_its_dates(run: Running) -> None:
    """Its client goes on with the same messages, without times, and a second import adds none."""
    messages = led(12)
    assert await count(await send(run, messages)) == (24, 0)
    stored = await list_stored(run)
    assert [at for _, at in stored][:3] == [MAY_1, MAY_1 + 60, MAY_1 + DAY_S]
    await run.app.background.wait_idle()
    told = message_text(run.models.requests_to(OBSERVER)[0].messages[-1])
    assert "on or before" not in told
    assert re.findall(r"^Date: (\w+, \w+ \d+, 2023)", told, re.MULTILINE)[:2] == [
        "Monday, May 1, 2023",
        "Tuesday, May 2, 2023",
    ]
    assert "(09:00)" in told

    assert await count(await send(run, messages)) == (0, 24)
    chat = run.chat("old")
    chat.history = [{k: v for k, v in m.items() if k != "created_at"} for m in messages]
    _, receipt = await chat.say("How heavy is crate 3?")
    assert receipt["status"] == "applied"
    assert len(await list_stored(run)) == 26


async def test_a_single_message_is_added_once(run: Running) -> None:
    """Whoever sends it again, and however many at once."""
    for n in range(3):
        added = said(n, MAY_1 + n)
        answers = await asyncio.gather(*(send(run, [added]) for _ in range(3)))
        assert sorted([await count(one) for one in answers]) == [(0, 1), (0, 1), (1, 0)]
        assert await count(await send(run, [said(0, MAY_1)])) == (0, 1)
    expected = [(LONG.format(n=n), MAY_1 + n) for n in range(3)]
    assert await list_stored(run) == expected


async def test_the_same_words_later_are_another_message(run: Running) -> None:
    """Also the words of the thread's first message, and the same as the newest."""
    ping = {"role": "user", "content": "The door was opened."}
    for n in (0, 1, 2):
        assert await count(await send(run, [ping | {"created_at": MAY_1 + n}])) == (1, 0)
    assert len(await list_stored(run)) == 3
    chat = run.chat("old", **{"x-om-history": "new"})
    await chat.say("Who opened it?")
    assert len(await list_stored(run)) == 5


async def test_a_message_beside_turns(run: Running) -> None:
    """It follows them. A time a little before the newest message is that of the newest; the same
    message again is still known."""
    chat = run.chat("old", **{"x-om-history": "new"})
    await chat.say("Hello.")
    (*_, (_, now)) = await list_stored(run)
    late = {"role": "user", "content": "The phone rang.", "created_at": now - 20}
    assert await count(await send(run, [late])) == (1, 0)
    assert await count(await send(run, [late])) == (0, 1)
    assert (await list_stored(run))[-1] == ("The phone rang.", now)
    too_late = {"role": "user", "content": "The bell rang.", "created_at": now - 61}
    refused = await send(run, [too_late])
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "om_conflict")
    assert "later than created_at" in refused.json()["error"]["message"]
    assert len(await list_stored(run)) == 3
    stale = await send(run, [late | {"created_at": now}], **{"If-Match": '"1"'})
    assert stale.status_code == 409


async def test_single_messages_become_notes(run: Running) -> None:
    """Nobody chats in their thread."""
    for n in range(12):
        await send(run, [said(n, MAY_1 + n * DAY_S)])
        await run.app.background.wait_idle()
    told = message_text(run.models.requests_to(OBSERVER)[-1].messages[-1])
    assert "Date: " in told
    assert "on or before" not in told
    chat = run.chat("old", **{"x-om-history": "new"})
    _, receipt = await chat.say("How heavy is crate 3?")
    assert receipt["status"] == "applied"


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((2.0, 1.0), "falls"),
        ((1.0, None), "every message"),
        ((1.0, "noon"), "no time"),
        ((1.0, "2026-01-01T00:00:00"), "with a zone"),
        ((1.0, 4e9), "later than the proxy's clock"),
    ],
)
async def test_times_that_cannot_be(tmp_path: Path, times: tuple[Any, Any], words: str) -> None:
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat("greeting").say("Hello.")
        messages = [
            {"role": "user", "content": str(at)} | ({} if at is None else {"created_at": at})
            for at in times
        ]
        answer = await send(run, messages)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "om_bad_request")
        assert error["param"] == "created_at"
        assert words in error["message"]
        assert (await ask(run, "GET", "/threads/old")).status_code == 404
        soon = {"role": "user", "content": "Soon.", "created_at": run.clock.now + 59}
        assert await count(await send(run, [soon])) == (1, 0)
