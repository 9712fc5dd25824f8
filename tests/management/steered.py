"""Threads with notes behind scripted models, and people who change these over the admin API."""

from __future__ import annotations

from typing import Any

import httpx

from om_proxy.testing.scripted import RecordedRequest, message_text
from tests.e2e.running import CRATE_REMARK, Chat, Running

MEMORY_SETTINGS = (
    "observation: {message_tokens: 1200, buffer_tokens: 300}, "
    "reflection: {observation_tokens: 20000}"
)
OWN = {"authorization": "Bearer sk-a"}


async def play(run: Running, turns: int, thread: str = "t") -> Chat:
    """Say so many remarks, and let all work end after each."""
    talk = run.chat(thread, **{"x-om-resource": "ada"})
    for _ in range(turns):
        await say(run, talk)
    return talk


async def say(run: Running, talk: Chat) -> None:
    await talk.say(CRATE_REMARK.format(n=len(talk.history)))
    run.clock.now += 1
    await run.app.background.wait_idle()


async def send(
    run: Running, method: str, path: str, body: Any = None, *, thread: str = "t", **headers: str
) -> httpx.Response:
    joiner = "&" if "?" in path else "?"
    url = f"{run.base}/om/v1/threads/{thread}{path}{joiner}resource=ada"
    return await run.http.request(method, url, json=body, headers=OWN | headers)


async def ask(
    run: Running,
    method: str,
    path: str,
    body: Any = None,
    *,
    status: int = 200,
    thread: str = "t",
    **headers: str,
) -> dict[str, Any]:
    answer = await send(run, method, path, body, thread=thread, **headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def read_notes(run: Running, thread: str = "t") -> dict[str, Any]:
    return await ask(run, "GET", "/observations", thread=thread)


def newest_prompt(run: Running) -> RecordedRequest:
    """What the actor was sent last."""
    return run.models.requests_to("scripted-actor")[-1]


def read_block(run: Running) -> str:
    """The observation block that the actor was sent last, with what stands beside it."""
    return "\n".join(message_text(message) for message in newest_prompt(run).messages[:3])
