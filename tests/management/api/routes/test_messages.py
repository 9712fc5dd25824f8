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
    found = excerpt_text(raw, "chat")
    assert found == excerpt or (excerpt is None and found.startswith("a"))


async def test_from_messages_to_notes_and_back(tmp_path: Path) -> None:
    """Each live message that is covered is in exactly one active entry, whose messages hold it."""
    async with run_with_scripted_models(tmp_path) as run:
        talk = run.chat("crates")
        for number in range(12):
            await talk.say(f"Crate {number} weighs {number} kg. " + "It is blue. " * 100)
        messages = (await ask(run, "GET", "/threads/crates/messages?excerpt=true")).json()["items"]
        covered = {m["seq"]: m["entry"] for m in messages if m["entry"] is not None}
        assert len(covered) > 2
        behind: dict[int, list[int]] = {}
        for entry in dict.fromkeys(covered.values()):
            path = f"/threads/crates/observations/{entry}/messages?excerpt=true&limit=2"
            cursor, seqs = "", []
            while cursor is not None:
                page = (await ask(run, "GET", f"{path}&cursor={cursor}")).json()
                seqs += [m["seq"] for m in page["items"]]
                cursor = page["cursor"]
            assert page["covers"] == [{"first": seqs[0], "last": seqs[-1]}]
            behind[entry] = seqs
        for message in messages:
            seq = message["seq"]
            shown = (await ask(run, "GET", f"/threads/crates/messages/{seq}")).json()
            assert shown["message"]["seq"] == seq
            noted_in = [entry["id"] for entry in shown["noted_in"]]
            if shown["message"]["state"] == "observed":
                assert noted_in == [entry for entry, seqs in behind.items() if seq in seqs]
            else:  # what is made ahead may have become a chunk meanwhile
                assert noted_in == [id_ for id_ in [shown["message"]["chunk"]] if id_]
        gone = await ask(run, "GET", "/threads/crates/messages/9000")
        assert gone.status_code == 404
        assert "there is no message 9000" in gone.json()["error"]["message"]
        assert (await ask(run, "GET", "/threads/crates/messages/m1")).status_code == 404
