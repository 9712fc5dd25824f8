"""What a web page can reach on its visitor's own server: over the wire, as a browser sends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.e2e.running import Chat, run_with_scripted_models


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_a_page_of_another_site_has_no_memory(tmp_path: Path, origin: str) -> None:
    """It knows the address and guesses the thread of a program here: it reads nothing of it and
    leaves nothing in it."""
    async with run_with_scripted_models(tmp_path) as run:
        await Chat(run, {"x-om-thread": "t"}).say("A secret.")
        page = Chat(run, {"x-om-thread": "t", "origin": origin, "sec-fetch-mode": "cors"})
        for _ in range(2):
            _, receipt = await page.send([{"role": "user", "content": "Which?"}])
            assert (receipt["status"], receipt["reason"]) == ("off", "no-credential")
            assert b"A secret." not in run.models.requests[-1].body
        memory = await run.memory()
        assert (memory.key, memory.count) == ((LOCAL_TENANT, "t", "t"), 2)


@pytest.mark.parametrize(
    "page",
    [{"host": "rebound.example:8400"}, {"sec-fetch-site": "cross-site"}],
    ids=["another name", "another site"],
)
async def test_a_page_that_tells_no_origin_has_no_memory(
    tmp_path: Path, page: dict[str, str]
) -> None:
    """A browser sends none with what a link or an image asks for. Its chat goes on all the same."""
    async with run_with_scripted_models(tmp_path) as run:
        await Chat(run, {"x-om-thread": "t"}).say("A secret.")
        reply, receipt = await Chat(run, {"x-om-thread": "t", **page}).say("Which?")
        assert reply
        assert (receipt["status"], receipt["reason"]) == ("off", "no-credential")
        assert b"A secret." not in run.models.requests[-1].body
        assert (await run.memory()).count == 2


async def test_a_page_of_this_machine_has_its_memory(tmp_path: Path) -> None:
    """A chat page that somebody runs here is as good as any other program here."""
    async with run_with_scripted_models(tmp_path) as run:
        chat = Chat(run, {"x-om-thread": "t", "origin": "http://localhost:3000"})
        await chat.say("A secret.")
        _, receipt = await chat.send([{"role": "user", "content": "Which?"}])
        assert receipt["status"] == "applied"
        assert b"A secret." in run.models.requests[-1].body
