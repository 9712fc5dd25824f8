"""The proxy in front of a scripted model, as a user without a key tries it."""

from __future__ import annotations

from typing import Any

import httpx

from om_proxy.cli.demo.stage import INTRODUCTION, serve_trial

FACT, QUESTION = "Our boat lies at pier 14.", "At which pier lies our boat?"


async def test_a_fact_is_answered_from_the_notes() -> None:
    """The introduction's advice works: after a fact is no longer sent, the notes answer the
    question."""
    messages: list[dict[str, Any]] = []
    statuses = []
    async with (
        serve_trial(0, log="off") as served,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        for text in (FACT, "It rains today.", QUESTION):
            messages.append({"role": "user", "content": text})
            response = await http.post(
                f"{served.url}/v1/chat/completions",
                json={"model": "any", "messages": messages},
                headers={"X-OM-Thread": "pier"},
                timeout=180,
            )
            statuses.append(response.headers["x-om-status"])
            messages.append(response.json()["choices"][0]["message"])
    assert statuses[1:] == ["applied", "applied"]  # on a very busy machine the first is `degraded`
    assert INTRODUCTION in messages[1]["content"]
    assert INTRODUCTION not in messages[3]["content"]
    assert messages[5]["content"].endswith(FACT)
    assert FACT in INTRODUCTION
    assert QUESTION in INTRODUCTION
