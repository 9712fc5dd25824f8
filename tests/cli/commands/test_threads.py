"""`om-proxy threads` lists threads."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from om_proxy.storage.sqlite.store import SqliteStore
from tests.cli.stored_memory import CONFIG, store_thread
from tests.cli.test_answers import ESCAPES, run_on_terminal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    return tmp_path


def test_a_pipe_gets_a_line_for_each_thread(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells stand between tabs, below a heading."""
    asyncio.run(store_thread(folder, Key("local", "ana", "kitchen"), title="Bees"))
    asyncio.run(store_thread(folder, Key("local", "ana", "van"), failures=3))
    asyncio.run(store_thread(folder, Key("local", "zoe", "attic"), failures=10))
    assert main(["threads", "--order", "name"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    heading, *cells = [line.split("\t") for line in out.splitlines()]
    assert heading[:2] == ["thread", "resource"]
    assert [(thread, resource, count) for thread, resource, count, *_ in cells] == [
        ("kitchen", "ana", "2"),
        ("van", "ana", "2"),
        ("attic", "zoe", "2"),
    ]
    assert [tuple(row[4:]) for row in cells] == [
        ("–", "works", "Bees"),
        ("–", "failing", "They keep bees."),
        ("–", "given up", "They keep bees."),
    ]
    for arguments, listed in (
        (["--resource", "zoe"], ["attic"]),
        (["--prefix", "ki"], ["kitchen"]),
        (["--prefix", "Be"], ["kitchen"]),
        (["--state", "failing"], ["van"]),
        (["--state", "parked"], ["attic"]),
    ):
        assert main(["threads", *arguments]) == 0
        lines = capsys.readouterr().out.splitlines()[1:]
        assert [line.split("\t")[0] for line in lines] == listed, arguments


@pytest.mark.parametrize(
    "option", [["--prefix", "ki"], ["--state", "failing"], ["--cursor", "c"]], ids=" ".join
)
def test_one_thread_is_not_chosen_from_a_list(
    option: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option of the list beside THREAD is refused, so that it is not taken for a condition."""
    asyncio.run(store_thread(folder, Key("local", "ana", "kitchen")))
    assert main(["threads", "kitchen", *option]) == 2
    assert "leave out THREAD" in capsys.readouterr().err


def test_a_terminal_gets_a_table(folder: Path) -> None:
    asyncio.run(store_thread(folder, Key("local", "ana", "kitchen"), title="Bees"))
    heading, row, *_ = ESCAPES.sub(
        "", run_on_terminal("threads", "--config", "om.yaml", cwd=folder)
    ).splitlines()
    assert heading.split() == [
        "thread",
        "resource",
        "messages",
        "last",
        "used",
        "saved",
        "memory",
        "work",
        "title",
    ]
    assert row.startswith("kitchen  ana")
    assert row.split()[-1] == "Bees"


def test_a_date_is_not_broken_at_80_columns(folder: Path) -> None:
    """Long names fold instead."""
    thread = "6f1b0a3c-5b2e-4d21-9a3f-0d6b4a7e9c55"
    asyncio.run(store_thread(folder, Key("local", "ana", thread), title="About the bees " * 3))
    shown = ESCAPES.sub("", run_on_terminal("threads", "--config", "om.yaml", cwd=folder))
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", shown)
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_page_says_how_to_read_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next page begins where the cursor of the first says."""
    for thread in "abc":
        asyncio.run(store_thread(folder, Key("local", "r", thread)))
    assert main(["threads", "--order", "name", "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    assert [line[0] for line in out.splitlines()[1:]] == ["a", "b"]
    assert "--cursor" in err
    assert main(["threads", "--order", "name", "--limit", "2", "--json"]) == 0
    page = orjson.loads(capsys.readouterr().out)
    assert main(["threads", "--order", "name", "--cursor", page["cursor"]]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("c\tr\t")
    assert main(["threads", "--cursor", "nonsense"]) == 2


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
def test_a_limit_out_of_range(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["threads", "--limit", limit])
    assert ended.value.code == 2
    assert "--limit" in capsys.readouterr().err


def test_a_store_without_threads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "om.yaml").write_text(CONFIG)

    async def create_store() -> None:
        await (await SqliteStore.open(folder / "om.db")).close()

    asyncio.run(create_store())
    assert main(["threads"]) == 0
    assert capsys.readouterr() == ("", "om-proxy: there are no such threads\n")
    assert main(["threads", "--resource", "ana"]) == 0
    assert capsys.readouterr() == ("", "om-proxy: there are no such threads\n")
    assert main(["threads", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["items"] == []


def test_all_tenants_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever has the file sees them all, in a column; hex digits are cut, and a beginning is enough
    to name one."""
    nameless = "5f" * 32
    asyncio.run(store_thread(folder, Key(nameless, "ana", "kitchen")))
    asyncio.run(store_thread(folder, Key("acme", "zoe", "attic-of-zoe")))
    assert main(["threads"]) == 0
    heading, *rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert heading[-1] == "tenant"
    assert {(row[0], row[-1]) for row in rows} == {
        ("kitchen", "5f5f5f5f"),
        ("attic-of-zoe", "acme"),
    }
    assert main(["threads", "--tenant", "5f5f"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["kitchen"]
    assert main(["threads", "attic", "--tenant", "ac"]) == 0
    assert "thread: attic-of-zoe" in capsys.readouterr().out
