"""`om-proxy messages` shows what was said, and what became of it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.command_line import run_om_proxy
from tests.cli.stored_memory import converse, run_server, store_thread

CONFIG = ("--config", "om.yaml")


async def test_the_pages_are_those_of_the_admin_api(tmp_path: Path) -> None:
    async with run_server(tmp_path) as run:
        await converse(run, "t", 8)
        auth = {"authorization": "Bearer sk-a"}
        for arguments, query in (
            ((), ""),
            (("--all", "--after", "2", "--through", "9"), "?live=all&after=2&through=9"),
            (("--excerpt", "--limit", "3"), "?excerpt=true&limit=3"),
        ):
            url = f"{run.base}/om/v1/threads/t/messages{query}"
            answered = (await run.http.get(url, headers=auth)).json()
            printed = await asyncio.to_thread(
                run_om_proxy, "messages", "t", *arguments, "--json", *CONFIG, cwd=tmp_path
            )
            assert orjson.loads(printed.stdout) == answered, query
        shown = await asyncio.to_thread(run_om_proxy, "messages", "t", *CONFIG, cwd=tmp_path)
    headings = re.findall(r"^(\d+) (\w+), 20\d\d-.*, \d+ tokens, (.*)$", shown.stdout, flags=re.M)
    assert [int(number) for number, *_ in headings] == list(range(1, 17))
    assert headings[0][1:] == ("user", "observed by note 1")
    assert headings[-1][2].startswith(("raw", "buffered in chunk"))
    assert shown.stdout.count("Crate 0 weighs") == 8 + 1  # the reply says it once more


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    return tmp_path


def test_a_page_says_how_to_read_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", "t", "--limit", "1", *CONFIG]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("1 user, 20")
    assert out.endswith("They keep bees.\n\n")
    assert "--cursor" in err
    assert main(["messages", "t", "--limit", "1", "--excerpt", "--json", *CONFIG]) == 0
    cursor = orjson.loads(capsys.readouterr().out)["cursor"]
    assert main(["messages", "t", "--cursor", cursor, *CONFIG]) == 0
    assert capsys.readouterr().out.startswith("2 user, 20")
    assert main(["messages", "t", "--cursor", cursor, "--all", *CONFIG]) == 2


@pytest.mark.parametrize(
    ("command", "heading"),
    [
        (("messages", "t"), "1 user by messages, 20"),
        (("search", "bees"), "t m1 of t, user by messages, 20"),
        (("notes", "show", "t", "1", "--messages"), "\n1 User by messages, 20"),
    ],
)
def test_the_api_stands_beside_a_message_that_is_not_of_chat(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    heading: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t"), api="messages"))
    assert main([*command, *CONFIG]) == 0
    assert heading in capsys.readouterr().out
    assert main([*command, "--json", *CONFIG]) == 0
    answer = orjson.loads(capsys.readouterr().out)
    lines = answer["messages" if command[0] == "notes" else "items"]
    assert {line["api"] for line in lines} == {"messages"}
