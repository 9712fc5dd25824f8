"""`om-proxy store erase` gets the bytes of what was forgotten out of the database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.cli.canary_threads import store_canary_threads
from tests.cli.command_line import CONFIG
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.own_postgres import OwnPostgres, own_postgres

PATIENT = PostgresOptions(timeout_s=30.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    (tmp_path / "om.yaml").write_text(CONFIG)
    return tmp_path


def test_a_file_needs_no_rewrite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(store_canary_threads(folder / "om.db", Key("local", "t", "t")))
    assert main(["forget", "t", "--yes"]) == 0
    capsys.readouterr()
    assert main(["store", "erase"]) == 0
    assert capsys.readouterr().out == "no forgotten bytes are pending\n"
    assert main(["store", "erase", "--rewrite"]) == 0
    assert capsys.readouterr().out == (
        "this store needs no rewrite: forgotten bytes are overwritten once no reader holds them\n"
        "no forgotten bytes are pending\n"
    )


def test_a_reader_of_the_file_keeps_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(store_canary_threads(folder / "om.db", Key("local", "t", "t")))
    with closing(sqlite3.connect("om.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchall()
        with closing(sqlite3.connect("om.db")) as writer, writer:
            writer.execute("DELETE FROM thread")
            writer.execute("UPDATE erasure SET asked = asked + 1")
        assert main(["store", "erase", "--wait", "0.01"]) == 1
        assert "end the program that reads them" in capsys.readouterr().out
    assert main(["store", "erase"]) == 0
    assert capsys.readouterr().out == "no forgotten bytes are pending\n"


@pytest.mark.parametrize(
    "arguments", [["--wait", "0"], ["--wait", "soon"], ["--lock-timeout", "-1"], ["--rewrit", "x"]]
)
def test_wrong_use(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """The rule is told, in no name of ours."""
    with pytest.raises(SystemExit) as ended:
        main(["store", "erase", *arguments])
    assert ended.value.code == 2
    assert "_read" not in capsys.readouterr().err


async def commit_canaries(server: OwnPostgres) -> None:
    store = await PostgresStore.open(server.url, PATIENT)
    for key in (Key("local", "ana", "kitchen"), KEY):
        memory = MemoryBuilder(key).chat(4, "canary" if key != KEY else "word").memory()
        await store.commit(Memory(key=key), memory)
    await store.close()


def test_a_person_erases_a_user_and_proves_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/guides/erase.md tells it, on PostgreSQL."""
    with own_postgres() as server:
        server.start()
        asyncio.run(commit_canaries(server))
        monkeypatch.setenv("OM_PROXY__STORAGE__URL", server.url)
        monkeypatch.setenv("OM_PROXY__STORAGE__TIMEOUT", "30s")
        forget = ["forget", "--all", "--resource", "ana", "--tenant", "local", "--yes", "--json"]
        assert main(forget) == 0
        receipt = json.loads(capsys.readouterr().out)
        assert receipt["bytes"]["database"] == "until_rewrite"
        assert main(["store", "erase"]) == 0
        assert capsys.readouterr().out == (
            "forgotten bytes stay in the tables' files: run om-proxy store erase --rewrite\n"
        )
        assert main(["store", "erase", "--rewrite"]) == 2  # nobody can be asked
        assert "add --yes" in capsys.readouterr().err
        assert main(["store", "erase", "--rewrite", "--yes"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0].endswith("MB")
        assert "is locked while it is rewritten: chat goes on without memory" in said[1]
        assert [line for line in said if line.startswith("rewriting message, ")]
        assert said[-1].startswith("what was forgotten before is gone from the tables")
        assert main(["api", "GET", f"/receipts/{receipt['id']}"]) == 0
        settled = json.loads(capsys.readouterr().out)
        assert settled["bytes"] == {
            "database": "gone",
            "log": "until_rewrite",
            "backups": "not_covered",
        }
        Path("receipt.json").write_text(json.dumps(settled))
        assert main(["store", "receipt", "receipt.json", "--resource", "ana"]) == 0


def test_the_operator_is_asked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_postgres() as server:
        server.start()
        asyncio.run(commit_canaries(server))
        monkeypatch.setenv("OM_PROXY__STORAGE__URL", server.url)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", lambda _: "no")
        assert main(["store", "erase", "--rewrite"]) == 1
        assert capsys.readouterr().out.splitlines()[-1] == "nothing was rewritten"
