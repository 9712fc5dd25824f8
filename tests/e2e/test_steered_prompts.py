"""After each change of a person, the preview is what goes upstream; and what a person takes back gives
the prompt's bytes back. In both layouts and both scopes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from om_proxy.testing.scripted import ACTOR
from tests.e2e.previewing import AUTH, list_message_bytes, preview
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.steered import MEMORY_SETTINGS, ask, play, read_notes, say

QUESTION = "Which crate goes to dock 3?"


@pytest.fixture(
    params=[(layout, scope) for layout in ("blocks", "merged") for scope in ("thread", "resource")],
    ids="-".join,
)
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    layout, scope = request.param
    more = f"context: {{layout: {layout}}}"
    memory = f"scope: {scope}, {MEMORY_SETTINGS}"
    async with run_with_scripted_models(tmp_path, memory, more=more) as running:
        yield running


async def read_prompt(run: Running, body: bytes) -> list[bytes]:
    """What would go upstream for this request now."""
    announced = await preview(run, "t", body, "?resource=ada")
    return list_message_bytes(announced["bytes"])


async def test_an_undo_gives_the_prompt_back(run: Running) -> None:
    """Byte for byte, change by change; the model server gets what is announced last."""
    talk = await play(run, 14)
    while not (notes := await read_notes(run))["chunks"] or len(notes["log"]) < 3:
        await say(run, talk)
    first, second, third = (entry["id"] for entry in notes["log"][:3])
    question = {"role": "user", "content": QUESTION}
    body = orjson.dumps({"model": ACTOR, "messages": [*talk.history, question]})
    prompts = [await read_prompt(run, body)]
    for method, path, change in (
        ("PATCH", f"/observations/{first}", {"text": "* 🔴 Crate 1 is blue."}),
        ("DELETE", f"/observations/{second}", None),
        ("PATCH", f"/observations/{third}", {"text": "* <b>\u202eodd</b>\n</observations>\0"}),
    ):
        await ask(run, method, path, change)
        prompts.append(await read_prompt(run, body))
    assert len({tuple(prompt) for prompt in prompts}) == 4
    assert b"Crate 1 is blue." in b"".join(prompts[1])
    for earlier in reversed(prompts[:-1]):
        await ask(run, "POST", "/undo", {})
        assert await read_prompt(run, body) == earlier
    assert await send_upstream(run, body) == prompts[0]


async def send_upstream(run: Running, body: bytes) -> list[bytes]:
    """Send the request, and return what the model server got of it."""
    headers = {
        **AUTH,
        "content-type": "application/json",
        "x-om-thread": "t",
        "x-om-resource": "ada",
    }
    answer = await run.http.post(f"{run.base}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return list_message_bytes(run.models.requests_to(ACTOR)[-1].body)


async def test_pins_come_and_go_to_the_byte(run: Running) -> None:
    """A pin that is removed leaves no trace, also where it was edited."""
    talk = await play(run, 14)
    question = {"role": "user", "content": QUESTION}
    body = orjson.dumps({"model": ACTOR, "messages": [*talk.history, question]})
    before = await read_prompt(run, body)
    pinned = await ask(run, "POST", "/pins", {"text": "Crate 3 is empty."})
    id_ = pinned["items"][-1]["id"]
    assert b"Crate 3 is empty." in b"".join(await read_prompt(run, body))
    await ask(run, "PATCH", f"/pins/{id_}", {"text": "Crate 3 is full."})
    edited = b"".join(await read_prompt(run, body))
    assert b"Crate 3 is full." in edited
    assert b"Crate 3 is empty." not in edited
    await ask(run, "DELETE", f"/pins/{id_}")
    assert await read_prompt(run, body) == before
    assert await send_upstream(run, body) == before


async def test_a_changed_chunk_is_announced(run: Running) -> None:
    """A chunk that a person wrote anew becomes active as the person wrote it; one that was dropped
    leaves its messages raw."""
    talk = await play(run, 14)
    while not (chunks := (await read_notes(run))["chunks"]):
        await say(run, talk)
    question = {"role": "user", "content": QUESTION}
    body = orjson.dumps({"model": ACTOR, "messages": [*talk.history, question]})
    before = await read_prompt(run, body)
    path = f"/chunks/{chunks[0]['id']}"
    await ask(run, "PATCH", path, {"text": "* 🔴 written by hand"})
    await ask(run, "POST", "/activate", {})
    active = await read_prompt(run, body)
    assert b"written by hand" in b"".join(active)
    assert len(active) < len(before)
    assert await send_upstream(run, body) == active
