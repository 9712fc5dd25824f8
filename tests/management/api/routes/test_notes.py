"""What people read of a thread's notes: each note leads to its messages, older generations stay
readable, and what is announced to become active does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import CRATE_REMARK, SMALL_LOG_MEMORY, Running, run_with_scripted_models

AUTH = {"authorization": "Bearer sk-a"}


@pytest.fixture(params=["thread", "resource"])
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(
        tmp_path, f"scope: {request.param}, {SMALL_LOG_MEMORY}"
    ) as running:
        yield running


async def read(run: Running, path: str, status: int = 200) -> dict[str, Any]:
    joiner = "&" if "?" in path else "?"
    url = f"{run.base}/om/v1/threads/t{path}{joiner}resource=ada"
    answer = await run.http.get(url, headers=AUTH)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def play(run: Running, turns: int, thread: str = "t") -> list[str]:
    """Return what the user said, in order."""
    talk = run.chat(thread, **{"x-om-resource": "ada"})
    texts = [CRATE_REMARK.format(n=number) for number in range(turns)]
    for text in texts:
        await talk.say(text)
        run.clock.now += 1
        await run.app.background.wait_idle()
    return texts


async def test_each_note_leads_to_its_messages(run: Running) -> None:
    """The messages of all notes, and those that none covers, are the conversation: each once."""
    texts = await play(run, 30)
    notes = await read(run, "/observations")
    assert notes["is_current"]
    assert notes["log"]
    covered: list[int] = []
    said: list[str] = []
    for entry in notes["log"]:
        found = await read(run, f"/observations/{entry['id']}?messages=true")
        assert found["entry"] == entry
        assert found["has_all_messages"]
        for message in found["messages"]:
            covered.append(message["seq"])
            if message["role"] == "user":
                said.append(message["raw"]["content"])
        first, last = found["covers"][0]["first"], found["covers"][-1]["last"]
        assert [m["seq"] for m in found["messages"]] == list(range(first, last + 1))
    assert covered == list(range(1, notes["coverage"] + 1))
    assert said == texts[: len(said)]


async def test_a_reflection_leads_to_its_sources(run: Running) -> None:
    await play(run, 60)
    notes = await read(run, "/observations")
    reflections = [entry for entry in notes["log"] if entry["kind"] == "reflection"]
    assert reflections
    for entry in reflections:
        found = await read(run, f"/observations/{entry['id']}")
        assert found["complete"]
        assert found["messages"] is None
        ids = {source["id"] for source in found["sources"]}
        assert set(entry["sources"]) <= ids
        nested = {id_ for source in found["sources"] for id_ in source["sources"]}
        assert nested <= ids
        leaves = [source for source in found["sources"] if source["kind"] == "observation"]
        assert leaves
        for source in leaves:  # of an older generation, and readable all the same
            assert (await read(run, f"/observations/{source['id']}"))["entry"] == source


async def test_older_generations_stay_readable(run: Running) -> None:
    await play(run, 60)
    listed = (await read(run, "/generations"))["items"]
    assert len(listed) > 1
    assert [line["is_current"] for line in listed] == [True] + [False] * (len(listed) - 1)
    for line in listed:
        notes = await read(run, f"/observations?generation={line['number']}")
        assert notes["generation"] == line["number"]
        assert len(notes["log"]) == line["entries"]
        assert sum(entry["tokens"] for entry in notes["log"]) == line["tokens"]
        assert notes["is_current"] or (notes["chunks"], notes["reflection"]) == ([], None)
    missing = await read(run, "/observations?generation=999", 404)
    assert str(listed[0]["number"]) in missing["error"]["message"]


async def test_what_is_announced_becomes_active(tmp_path: Path) -> None:
    """Chunks that are said to activate do so with the next request."""
    announced = 0
    memory = f"activate_after_idle: 60s, {SMALL_LOG_MEMORY}"
    async with run_with_scripted_models(tmp_path, memory) as run:
        talk = run.chat("t", **{"x-om-resource": "ada"})
        for number in range(40):
            before = await read(run, "/observations") if number else {"chunks": []}
            activating = [chunk["text"] for chunk in before["chunks"] if chunk["activates"]]
            for chunk in before["chunks"]:
                found = await read(run, f"/observations/{chunk['id']}?chunk=true&messages=true")
                assert found["is_chunk"]
                assert found["messages"][0]["seq"] == found["covers"][0]["first"]
            await talk.say(CRATE_REMARK.format(n=number))
            texts = [
                entry["text"]
                for line in (await read(run, "/generations"))["items"]
                for entry in (await read(run, f"/observations?generation={line['number']}"))["log"]
            ]  # it may be condensed at once
            assert set(activating) <= set(texts)
            if number % 7 == 0 and before["chunks"]:
                assert activating  # the pause has let the prompt cache go cold
            announced += len(activating)
            run.clock.now += 90 if number % 7 == 6 else 1
            await run.app.background.wait_idle()
    assert announced


async def test_another_threads_messages_are_not_shown(tmp_path: Path) -> None:
    """In a log that threads share, an entry about both leads to this thread's messages alone."""
    async with run_with_scripted_models(tmp_path, f"scope: resource, {SMALL_LOG_MEMORY}") as run:
        await play(run, 20, "other")
        await play(run, 20)
        notes = await read(run, "/observations")
        labels = {label for entry in notes["log"] for label in entry["about"]}
        assert len(labels) == 2
        for entry in notes["log"]:
            found = await read(run, f"/observations/{entry['id']}?messages=true")
            own = (await read(run, ""))["label"] in entry["about"]
            assert bool(found["covers"]) == own
            assert bool(found["messages"]) == own


@pytest.mark.parametrize(
    "path", ["/observations/999", "/observations/x", "/observations/1?chunk=1"]
)
async def test_there_is_no_other_entry(run: Running, path: str) -> None:
    await play(run, 1)
    await read(run, path, 404)


async def test_those_that_are_stored_are_named(run: Running) -> None:
    """Entries and generations, as ranges."""
    await play(run, 60)
    listed = [line["number"] for line in (await read(run, "/generations"))["items"]]
    ids = [entry["id"] for entry in (await read(run, "/observations"))["log"]]
    for path, numbers in (
        ("/observations/999", ids),
        ("/generations/999", listed),
        ("/observations?generation=999", listed),
    ):
        message = (await read(run, path, 404))["error"]["message"]
        named = [int(n) for n in re.findall(r"[0-9]+", message.rpartition(": ")[2])]
        assert (named[0], named[-1]) == (min(named), max(named))
        assert min(named) <= min(numbers)
        assert max(named) == max(numbers)


async def test_two_generations_are_compared(run: Running) -> None:
    """Line by line, in both directions; each says why it began."""
    await play(run, 14)
    first = (await read(run, "/observations"))["log"][0]
    before = (await read(run, "/generations"))["items"][0]["number"]
    url = f"{run.base}/om/v1/threads/t/observations/{first['id']}?resource=ada"
    changed = await run.http.patch(url, headers=AUTH, json={"text": "* corrected"})
    number = changed.json()["generation"]
    found = await read(run, f"/generations/{number}?against={before}")
    assert (found["why"], found["at"], found["is_current"]) == ("edit", run.clock.now, True)
    assert [line["text"] for line in found["diff"] if line["kind"] == "added"] == ["* corrected"]
    removed = [line["text"] for line in found["diff"] if line["kind"] == "removed"]
    assert removed == first["text"].split("\n")
    kept = [line["text"] for line in found["diff"] if line["kind"] != "removed"]
    assert "\n".join(kept) == found["text"]
    back = await read(run, f"/generations/{before}?against={number}")
    assert (back["text"], back["against_text"]) == (found["against_text"], found["text"])
    alone = await read(run, f"/generations/{before}")
    assert (alone["against"], alone["against_text"], alone["diff"]) == (None, None, None)
    for path in ("/generations/99", f"/generations/{number}?against=99", "/generations/x"):
        await read(run, path, 404)


async def test_long_generations_are_not_compared(run: Running) -> None:
    """The two texts are shown all the same."""
    await play(run, 14)
    first = (await read(run, "/observations"))["log"][0]
    url = f"{run.base}/om/v1/threads/t/observations/{first['id']}?resource=ada"
    changed = await run.http.patch(url, headers=AUTH, json={"text": "x\n" * 5_000 + "x"})
    number = changed.json()["generation"]
    found = await read(run, f"/generations/{number}?against={number}")
    assert found["diff"] is None
    assert found["text"] == found["against_text"]
    assert found["text"].startswith("x\nx")
