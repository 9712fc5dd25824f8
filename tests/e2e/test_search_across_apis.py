"""What was said by one API is found by whoever searches, whichever API they speak, and is shown with
the API that it came by."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from om_proxy.cli import main
from om_proxy.testing.scripted import ACTOR
from tests.cli.stored_memory import CONFIG
from tests.e2e.running import CRATE_REMARK, SMALL_LOG_MEMORY, Running, run_with_scripted_models
from tests.e2e.test_recall import DETAIL, Curious
from tests.management.mcp.test_route import OWN, use
from tests.support.three_apis import PATHS, Api, Json, read_reply, write_body

MEMORY = f"retrieval: {{enabled: true, scope: resource}}, {SMALL_LOG_MEMORY}"
HEADERS = {**OWN, "x-om-resource": "house"}
SAID_BY: Mapping[Api, str] = {
    "responses": DETAIL,
    "messages": "The number plate of the crane is lost.",
}


class Searching(Curious):
    look_up: Mapping[str, Any] = {"query": "serial number of crate 0"}


async def say(run: Running, api: Api, thread: str, history: list[Json], text: str) -> str:
    history.append({"role": "user", "content": text})
    answer = await run.http.post(
        run.base + PATHS[api],
        json=write_body(api, history, model=ACTOR),
        headers={**HEADERS, "x-om-thread": thread},
    )
    assert answer.status_code == 200, answer.text
    history.append(read_reply(api, answer.content, stream=False))
    await run.app.background.wait_idle()
    run.clock.now += 60
    return str(history[-1]["content"])


async def test_a_message_is_found_whichever_api_it_came_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a thread that speaks chat, by a model's look-up; by the admin API, the Model Context
    Protocol and the command line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "om.yaml").write_text(CONFIG)
    async with run_with_scripted_models(tmp_path, MEMORY, models=Searching()) as run:
        for api, text in SAID_BY.items():
            await say(run, api, f"by-{api}", [], text)
        history: list[Json] = []
        for number in range(12):
            await say(run, "chat", "crates", history, CRATE_REMARK.format(n=number))
        asked = await say(run, "chat", "crates", history, "What is the serial number?")
        assert asked == "It is QX-4417-K"
        assert "QX-4417-K" not in str(history[:-1])

        answer = await run.http.get(f"{run.base}/om/v1/search?q=number&role=user", headers=HEADERS)
        apis = {item["excerpt"]: item["api"] for item in answer.json()["items"]}
        assert [apis[text] for text in SAID_BY.values()] == list(SAID_BY)
        assert apis["What is the serial number?"] == "chat"
        found, is_error = await use(run, "search_memory", {"query": "number"}, HEADERS)
        assert not is_error
        assert all(text in found for text in SAID_BY.values())

        for api, text in SAID_BY.items():
            for command in (["search", "number"], ["messages", f"by-{api}", "--resource", "house"]):
                assert await asyncio.to_thread(main, [*command, "--config", "om.yaml"]) == 0
                printed = capsys.readouterr().out
                assert re.search(rf"^.*user by {api}, .*\n{re.escape(text)}\n", printed, re.M)
                assert "by chat" not in printed
