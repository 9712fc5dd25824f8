"""People page through a thread's messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from om_proxy.management.api.routes.messages import MAX_EXCERPT_CHARS, excerpt_text
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ask


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path) as running:
        yield running


async def test_pages_of_messages(run: Running) -> None:
    """All pages together hold the conversation, and with `all` what was taken back too."""
    talk = run.chat("crates")
    for number in range(3):
        await talk.say(f"Where is crate {number}?")
    del talk.history[-2:]
    await talk.say("Where is dock 9?")
    for live, count in (("only", 6), ("all", 8)):
        lines, cursor = [], ""
        while cursor is not None:
            path = f"/threads/crates/messages?limit=3&live={live}&cursor={cursor}"
            page = (await ask(run, "GET", path)).json()
            assert len(page["items"]) <= 3
            lines += page["items"]
            cursor = page["cursor"]
        assert len(lines) == count
        assert page["end"] == lines[-1]["seq"]
        kept = [line for line in lines if line["state"] == "raw"]
        assert [line["raw"] for line in kept] == talk.history[1:]  # the first are instructions
        assert len(lines) - len(kept) == (2 if live == "all" else 0)
        assert {line["state"] for line in lines} <= {"raw", "superseded"}


async def test_ranges_and_excerpts(run: Running) -> None:
    talk = run.chat("crates")
    await talk.say("Where is crate 7? " + "It is blue. " * 100)
    path = "/threads/crates/messages?excerpt=true&after=0&through=1"
    page = (await ask(run, "GET", path)).json()
    [line] = page["items"]
    assert line["raw"] is None
    assert line["excerpt"].startswith("Where is crate 7?")
    assert len(line["excerpt"]) == MAX_EXCERPT_CHARS
    cursor = (await ask(run, "GET", "/threads/crates/messages?limit=1")).json()["cursor"]
    for other in ("/threads/crates/messages?live=all", "/threads?limit=1", "/audit?limit=1"):
        answer = await ask(run, "GET", f"{other}&cursor={cursor}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cursor")


@pytest.mark.parametrize(
    ("raw", "excerpt"),
    [
        (b'{"role":"user","content":"short"}', "short"),
        (json.dumps({"role": "user", "content": "x" * 300}).encode(), "x" * 300),
        (json.dumps({"role": "user", "content": "x" * 301}).encode(), "x" * 299 + "…"),
        (b'{"role":"user","content":"half \\ud800"}', "half \ufffd"),
        (b"\xff\xfe", ""),
        (b'{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}', None),
    ],
)
def test_excerpt(raw: bytes, excerpt: str | None) -> None:
    found = excerpt_text(raw)
    assert found == excerpt or (excerpt is None and found.startswith("a"))
