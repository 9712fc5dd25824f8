"""`om-proxy events` lists what happened, and follows what happens."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from msgspec import Raw

from om_proxy.cli import main
from om_proxy.cli.commands.events import read_pages
from om_proxy.management.api.routes.events import EventLine, EventList
from om_proxy.memory.model import Key
from om_proxy.storage.sqlite.store import SqliteStore
from tests.cli.command_line import clean_environment, run_om_proxy
from tests.cli.stored_memory import converse, run_server, store_thread
from tests.storage.event_contract import activation

CONFIG = ("--config", "om.yaml")
KEY = Key("local", "t", "t")
TYPE = "data-om-activation"


async def test_the_events_are_those_of_the_admin_api(tmp_path: Path) -> None:
    """All of them, a thread's, and those of one type."""
    async with run_server(tmp_path) as run:
        await converse(run, "t", 9)
        await converse(run, "u", 3)
        auth = {"authorization": "Bearer sk-a"}
        for arguments, route in (
            ((), "/events"),
            (("t",), "/threads/t/events"),
            (
                ("--type", "data-om-activation", "--limit", "5"),
                "/events?type=data-om-activation&limit=5",
            ),
        ):
            answered = (await run.http.get(f"{run.base}/om/v1{route}", headers=auth)).json()
            printed = await asyncio.to_thread(
                run_om_proxy, "events", *arguments, "--json", *CONFIG, cwd=tmp_path
            )
            assert orjson.loads(printed.stdout) == answered
        everything = (await run.http.get(f"{run.base}/om/v1/events", headers=auth)).json()
        listed = await asyncio.to_thread(run_om_proxy, "events", *CONFIG, cwd=tmp_path)
    rows = [line.split("\t") for line in listed.stdout.splitlines()[1:]]
    assert [f"data-om-{row[1]}" for row in rows] == [item["type"] for item in everything["items"]]
    assert {row[2] for row in rows} == {"t", "u"}
    assert all("\\u000a" not in row[3] for row in rows)


async def test_new_events_are_followed(tmp_path: Path) -> None:
    """They are printed as they happen, one a line."""
    async with run_server(tmp_path) as run:
        talk = await converse(run, "t", 3)
        following = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "om_proxy", "events", "t", "--follow", "--json", *CONFIG),
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
        )
        assert following.stdout
        async with asyncio.timeout(60):
            first = json.loads(await following.stdout.readline())
            assert first["type"] == "data-om-buffering-start"
            seen = {first["type"]}
            while "data-om-activation" not in seen:
                await talk.say("Crate 7 weighs 7 kilos, is painted red and goes to dock 7. " * 12)
                await run.app.background.wait_idle()
                seen.add(json.loads(await following.stdout.readline())["type"])
        following.terminate()
        await following.wait()


async def test_a_page_without_events_is_waited_behind() -> None:
    """Empty pages print nothing; a gap is told, and the cursor of each page leads to the next."""
    pages = [
        EventList(items=[], cursor="1", has_more=True, has_gap=False),
        EventList(items=[], cursor="2", has_more=False, has_gap=False),
        EventList(items=[], cursor="3", has_more=False, has_gap=True),
        EventList(items=[make_line("4")], cursor="4", has_more=False, has_gap=False),
    ]
    asked: list[str | None] = []

    async def read_page(cursor: str | None) -> EventList:
        asked.append(cursor)
        return pages[len(asked) - 1]

    followed = read_pages(read_page, None, is_followed=True, interval_s=0)
    assert [await anext(followed), await anext(followed)] == pages[2:]
    assert asked == [None, "1", "2", "3"]
    asked.clear()
    assert [page async for page in read_pages(read_page, None, is_followed=False)] == []
    assert asked == [None, "1"]


@pytest.mark.parametrize("form", [(), ("--follow",), ("--follow", "--json")])
def test_a_limit_bounds_the_lines(
    folder: Path, capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    """Also where they are followed: it ends. It says how to read on where events are left over."""
    assert main(["events", "t", "--type", TYPE, "--limit", "2", *form, *CONFIG]) == 0
    out, err = capsys.readouterr()
    heading_lines = 0 if "--json" in form else 1
    assert len(out.splitlines()) == 2 + heading_lines
    assert "--cursor" in err
    assert main(["events", "t", "--type", TYPE, "--limit", "5", *form, *CONFIG]) == 0
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (5 + heading_lines, "")


def test_without_a_limit_all_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON it is one page of the admin API."""
    asyncio.run(store_events(folder, 105))
    assert main(["events", "--type", TYPE, *CONFIG]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 110
    assert main(["events", "--json", *CONFIG]) == 0
    page = orjson.loads(capsys.readouterr().out)
    assert (len(page["items"]), page["has_more"]) == (100, True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a thread of which five activations are told."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, KEY))
    asyncio.run(store_events(tmp_path, 5))
    return tmp_path


async def store_events(folder: Path, count: int) -> None:
    store = await SqliteStore.open(folder / "om.db")
    try:
        await store.add_events(KEY, [activation(str(number)) for number in range(count)])
    finally:
        await store.close()


def make_line(id_: str) -> EventLine:
    return EventLine(
        id=id_, at=0.0, tenant="a", resource="r", thread="t", type="data-om-edited", data=Raw(b"{}")
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--resource", "r"], 2, "name the thread too"),
        (["--type", "data-om-nothing"], 2, "an event has one of the types"),
        (["nobody"], 4, "no memory of a thread nobody"),
        (["--cursor", "x"], 2, "not one that a list"),
    ],
)
def test_wrong_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    assert main(["events", *arguments, *CONFIG]) == status
    assert said in capsys.readouterr().err
