"""The memory of the demo, kept in a folder and served again."""

from __future__ import annotations

import asyncio
import io
import socket
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from om_proxy.cli.demo.play import play_story
from om_proxy.cli.demo.stage import ACTOR_NAME, choose_port, open_unfinished, serve_kept
from om_proxy.cli.demo.story import Story, load_story
from om_proxy.cli.demo.summary import compute_costs
from om_proxy.common.errors import OmError
from tests.cli.command_line import run_om_proxy


@pytest.fixture
def morning() -> Story:
    return Story(load_story().turns[:12])


async def test_a_visitor_without_a_key_sees_the_conversation(
    morning: Story, tmp_path: Path
) -> None:
    """It is the only one: the client without memory has named no thread."""
    await play_story(morning, Console(file=io.StringIO()), kept_folder=tmp_path)
    async with (
        serve_kept(morning, tmp_path, 0) as served,
        httpx.AsyncClient(base_url=f"{served.url}/om", trust_env=False) as http,
    ):
        (line,) = (await http.get("/v1/threads")).json()["items"]
        assert (line["tenant"], line["thread"]) == ("local", "van-planner")
        status = (await http.get("/v1/threads/van-planner")).json()
        assert status["observations"]["count"] > 0
        assert status["messages"]["threshold"] == 7_000
        assert (await http.get("/")).status_code == 200


async def test_the_saving_is_shown_at_the_list_prices_of_the_terminal(
    morning: Story, tmp_path: Path
) -> None:
    """The models are named as scripted, and by what they are priced as."""
    result = await play_story(morning, Console(file=io.StringIO()), kept_folder=tmp_path)
    printed = compute_costs(result.without, result.with_memory, result.memory)[0]
    async with (
        serve_kept(morning, tmp_path, 0) as served,
        httpx.AsyncClient(base_url=f"{served.url}/om/v1", trust_env=False) as http,
    ):
        (line,) = (await http.get("/threads")).json()["items"]
        ledger = (await http.get("/threads/van-planner")).json()["ledger"]
        models = (await http.get("/stats?by=model")).json()["items"]
    assert {one["model"]: one["ledger"]["priced"] for one in models} == {
        ACTOR_NAME: True,
        "scripted-observer/gemini/gemini-3.5-flash-lite": True,
    }
    saving = ledger["saving"]
    assert (ledger["priced"], line["net_saving"]) == (True, saving["net"])
    # each call is rounded to a micro-dollar
    assert saving["memory_cost"] / 1e6 == pytest.approx(printed.memory, rel=0.001)
    assert saving["cost"] / 1e6 == pytest.approx(printed.with_memory, rel=0.001)
    # the printed one was really sent; this one is computed from the prompts with memory
    assert saving["baseline"] / 1e6 == pytest.approx(printed.without, rel=0.02)


async def test_what_happened_is_still_told_whenever_the_memory_is_shown(
    morning: Story, tmp_path: Path
) -> None:
    """The story is older than the time that events are kept. A change by the visitor, which removes
    old events too, goes on after it."""
    await play_story(morning, Console(file=io.StringIO()), kept_folder=tmp_path)
    told: list[list[str]] = []
    for _ in range(2):
        async with (
            serve_kept(morning, tmp_path, 0) as served,
            httpx.AsyncClient(base_url=f"{served.url}/om/v1", trust_env=False) as http,
        ):
            pinned = await http.post("/threads/van-planner/pins", json={"text": "Vans are white."})
            assert pinned.status_code == 200
            events = (await http.get("/events")).json()["items"]
            told.append([event["id"] for event in events])
            assert {event["type"] for event in events} > {"data-om-activation", "data-om-edited"}
            age_s = events[-1]["at"] - morning.turns[-1].at
            assert 0 <= age_s < 600
    first, second = told
    assert second[: len(first)] == first


async def test_commands_beside_it_leave_what_happened(morning: Story, tmp_path: Path) -> None:
    """They find the store by the settings that are yielded, from any folder. Their clock is the machine's,
    and to that clock the whole story is too old to be kept. They ask its memory models too."""
    kept = tmp_path / "kept"
    kept.mkdir()
    await play_story(morning, Console(file=io.StringIO()), kept_folder=kept)
    told: list[list[str]] = []
    async with (
        serve_kept(morning, kept, 0) as served,
        httpx.AsyncClient(base_url=f"{served.url}/om/v1", trust_env=False) as http,
    ):
        for text in (None, "Vans are white.", "Vans are clean."):
            if text:
                command = ("notes", "pin", "van-planner", text)
                pinned = await asyncio.to_thread(
                    run_om_proxy,
                    *command,
                    cwd=tmp_path,
                    OM_PROXY_CONFIG=str(served.config),
                )
                assert pinned.returncode == 0, pinned.stderr
            events = (await http.get("/events")).json()["items"]
            told.append([event["id"] for event in events])
        reflected = await asyncio.to_thread(
            run_om_proxy,
            *("notes", "reflect", "van-planner"),
            cwd=tmp_path,
            OM_PROXY_CONFIG=str(served.config),
        )
        assert reflected.returncode == 0, reflected.stderr
    story, *later = told
    assert story
    assert [ids[: len(story)] for ids in later] == [story, story]
    assert [len(ids) - len(story) for ids in later] == [1, 2]


def test_a_story_that_broke_off_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "kept"

    def break_off() -> None:
        with open_unfinished(folder) as unfinished:
            (unfinished / "om.db").write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        break_off()
    assert list(folder.parent.iterdir()) == []
    with open_unfinished(folder) as unfinished:
        (unfinished / "om.db").write_text("whole")
        unfinished.rename(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["kept"]
    assert (folder / "om.db").read_text() == "whole"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OmError, match="name another folder"),
        open_unfinished(tmp_path / "file" / "kept"),
    ):
        pass


def test_a_port_in_use_is_replaced_by_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert choose_port(port) == 0
    assert choose_port(port) == port
