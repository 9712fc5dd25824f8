"""People pin notes over the admin API, and every later prompt begins with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from om_proxy.observability.facts import Fact, NotesChanged
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.steered import (
    MEMORY_SETTINGS,
    OWN,
    ask,
    play,
    read_block,
    read_notes,
    say,
    send,
)


@pytest.fixture(params=["thread", "resource"])
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(
        tmp_path, f"scope: {request.param}, {MEMORY_SETTINGS}"
    ) as running:
        yield running


async def test_a_pin_is_read_from_the_next_request_on(run: Running) -> None:
    """Also before there is any other note. It changes the prompt's beginning once."""
    talk = await play(run, 2)
    added = await ask(run, "POST", "/pins", {"text": "Ada is allergic to nuts."})
    [pin] = added["items"]
    assert (pin["text"], pin["at"]) == ("Ada is allergic to nuts.", run.clock.now)
    assert (await read_notes(run))["pins"] == added["items"]
    await say(run, talk)
    first = read_block(run)
    assert "<pinned-notes>\nAda is allergic to nuts.\n</pinned-notes>" in first
    run.clock.now += 40  # within the life of the prompt cache
    await say(run, talk)
    assert read_block(run) == first
    await ask(run, "PATCH", f"/pins/{pin['id']}", {"text": "Ada eats everything."})
    await say(run, talk)
    assert read_block(run) == first.replace("Ada is allergic to nuts.", "Ada eats everything.")
    gone = await ask(run, "DELETE", f"/pins/{pin['id']}")
    assert gone["items"] == []
    await say(run, talk)
    assert "pinned" not in read_block(run)


async def test_the_same_words_change_nothing(run: Running) -> None:
    """Saving a pin as it is makes no version and tells nobody of a change."""
    await play(run, 2)
    [pin] = (await ask(run, "POST", "/pins", {"text": "Ada is allergic to nuts."}))["items"]
    before = await read_notes(run)
    told: list[Fact] = []
    run.app.facts.subscribe(told.append, NotesChanged)
    path = f"/pins/{pin['id']}"
    assert (await ask(run, "PATCH", path, {"text": pin["text"]}))["items"] == [pin]
    assert await read_notes(run) == before
    assert told == []
    await ask(run, "PATCH", path, {"text": "Ada eats everything."})
    assert [getattr(fact, "change", None) for fact in told] == ["pin-edited"]


async def test_without_pins_and_notes_the_client_has_its_own_prompt(run: Running) -> None:
    """A pin that came and went leaves the client's bytes as they came."""
    talk = await play(run, 2)
    pin = (await ask(run, "POST", "/pins", {"text": "x"}))["items"][0]
    await ask(run, "DELETE", f"/pins/{pin['id']}")
    await say(run, talk)
    messages = run.models.requests_to("scripted-actor")[-1].messages
    assert [message["content"] for message in messages] == [
        message["content"] for message in talk.history[:-1]
    ]


async def test_pins_survive_a_restart_of_notes(run: Running) -> None:
    """They stand before the notes that come later, and behind no fork."""
    talk = await play(run, 2)
    await ask(run, "POST", "/pins", {"text": "Ada is allergic to nuts."})
    for _ in range(14):
        await say(run, talk)
    block = read_block(run)
    assert block.index("allergic") < block.index("<observations>")
    del talk.history[3:]
    await say(run, talk)
    assert "allergic" in read_block(run)


async def test_the_limits_are_told(run: Running) -> None:
    await play(run, 1)
    long = "word " * 3_500
    await ask(run, "POST", "/pins", {"text": long})
    for path, method in (("/pins", "POST"),):
        refused = await ask(run, method, path, {"text": long}, status=400)
        assert refused["error"]["code"] == "om_too_many_pins"
        assert "50 pins of 4000 tokens" in refused["error"]["message"]
    await ask(run, "POST", "/pins", {"text": "x" * 20_001}, status=400)
    emptied = await ask(run, "PATCH", "/pins/1", {"text": " "}, status=400)
    assert emptied["error"]["message"].endswith("to take it out, delete the pin")
    assert len((await ask(run, "GET", "/pins"))["items"]) == 1
    for method, body in (("PATCH", {"text": "x"}), ("DELETE", None)):
        missing = await ask(run, method, "/pins/99", body, status=404)
        assert "there are: " in missing["error"]["message"]


async def test_of_two_people_the_second_hears_of_the_first(run: Running) -> None:
    await play(run, 1)
    pin = (await ask(run, "POST", "/pins", {"text": "x"}))["items"][0]
    version = (await ask(run, "GET", "/pins"))["version"]
    etag = {"if-match": f'"{version}"'}
    await ask(run, "PATCH", f"/pins/{pin['id']}", {"text": "y"}, **etag)
    for method, path, body in (
        ("POST", "/pins", {"text": "z"}),
        ("PATCH", f"/pins/{pin['id']}", {"text": "z"}),
        ("DELETE", f"/pins/{pin['id']}", None),
    ):
        refused = await ask(run, method, path, body, status=409, **etag)
        assert refused["error"]["code"] == "om_conflict"


async def test_another_tenant_sees_no_pins(run: Running) -> None:
    await play(run, 1)
    await ask(run, "POST", "/pins", {"text": "x"})
    stranger = {"authorization": "Bearer sk-b"}
    assert (await send(run, "GET", "/pins", **stranger)).status_code == 404
    assert (await send(run, "POST", "/pins", {"text": "y"}, **stranger)).status_code == 404


async def test_pins_of_a_shared_log_are_its_threads(tmp_path: Path) -> None:
    """One thread pins, all read: a warm one too, and a new one with its first request."""
    async with run_with_scripted_models(tmp_path, f"scope: resource, {MEMORY_SETTINGS}") as run:
        await play(run, 8)
        other = await play(run, 2, "other")
        await ask(run, "POST", "/pins", {"text": "Ada is allergic to nuts."})
        assert (await read_notes(run, "other"))["pins"][0]["text"] == "Ada is allergic to nuts."
        await say(run, other)
        assert "allergic" in read_block(run)
        after = read_block(run)
        await say(run, other)
        assert read_block(run) == after
        await play(run, 1, "third")
        assert "allergic" in read_block(run)


async def test_the_log_of_a_resource_has_pins_too(tmp_path: Path) -> None:
    """By the resource's name; where threads share no log, there is nothing to pin to."""
    async with run_with_scripted_models(tmp_path, f"scope: resource, {MEMORY_SETTINGS}") as run:
        await play(run, 2)
        url = f"{run.base}/om/v1/resources/ada/pins"
        added = await run.http.post(url, json={"text": "No nuts."}, headers=OWN)
        [pin] = added.json()["items"]
        assert (await read_notes(run))["pins"] == [pin]
        edited = await run.http.patch(f"{url}/{pin['id']}", json={"text": "Nuts."}, headers=OWN)
        assert edited.json()["items"][0]["text"] == "Nuts."
        assert (await run.http.delete(f"{url}/{pin['id']}", headers=OWN)).json()["items"] == []
        assert (await run.http.get(url, headers=OWN)).json()["items"] == []
        for path, headers in (("bob", OWN), ("ada", {"authorization": "Bearer sk-b"})):
            other = f"{run.base}/om/v1/resources/{path}/pins"
            refused = await run.http.post(other, json={"text": "x"}, headers=headers)
            assert refused.status_code == 404
