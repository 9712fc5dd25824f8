"""`om-proxy export` writes everything stored."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.cli.commands.exports import open_private_file, write_pieces
from om_proxy.common.errors import StorageError
from om_proxy.memory.model import Key
from tests.cli.command_line import run_om_proxy
from tests.cli.stored_memory import converse, run_server, store_thread

CONFIG = ("--config", "om.yaml")


async def test_the_records_are_those_of_the_admin_api(tmp_path: Path) -> None:
    """Of a tenant, a resource and a thread, beside a running server."""
    async with run_server(tmp_path) as run:
        await converse(run, "t", 3, **{"x-om-resource": "ana"})
        await converse(run, "u", 1)
        await run.app._deliveries.write()  # else it comes between the two exports
        auth = {"authorization": "Bearer sk-a"}
        for arguments, query in (
            ((), ""),
            (("--resource", "ana"), "?resource=ana"),
            (("t",), "?resource=ana&thread=t"),
        ):
            answered = await run.http.get(f"{run.base}/om/v1/export{query}", headers=auth)
            printed = await asyncio.to_thread(
                run_om_proxy, "export", *arguments, *CONFIG, cwd=tmp_path
            )
            assert read_records(printed.stdout) == read_records(answered.text)
            assert read_records(printed.stdout)[-1]["om"] == "end"


def read_records(text: str) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t"), "bees\x9b31m\u202e"))
    return tmp_path


def test_a_file_is_for_its_owner(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is never overwritten; what fails leaves none."""
    assert main(["export", "t", "--output", "t.jsonl", *CONFIG]) == 0
    assert capsys.readouterr().out == ""
    file = folder / "t.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_records(file.read_text())[-1] == {"om": "end", "threads": 1}
    assert main(["export", "--output", "t.jsonl", *CONFIG]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", "--resource", "q", "--output", "q.jsonl", *CONFIG]) == 4
    assert main(["export", "nobody", "--output", "q.jsonl", *CONFIG]) == 4
    assert main(["export", "--output", "no/such/folder.jsonl", *CONFIG]) == 2
    assert not (folder / "q.jsonl").exists()


def test_no_terminal_sequence_is_written(folder: Path) -> None:
    written = run_om_proxy("export", *CONFIG, cwd=folder).stdout
    assert "\\u009b31m\\u202e" in written
    assert not {"\x9b", "\u202e", "\x1b"} & set(written)


async def test_an_export_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    """Whether reading fails, or the records end before the last one."""

    async def break_off(error: Exception | None) -> AsyncIterator[bytes]:
        yield b'{"om":"export"}\n{"om":"message"}\n'
        if error:
            raise error

    for error, said in ((OSError("the disk is gone"), "disk"), (None, "a part is missing")):
        with (
            pytest.raises((OSError, StorageError), match=said),
            open_private_file(str(tmp_path / "x")) as file,
        ):
            await write_pieces(break_off(error), file)
        assert list_names(tmp_path) == []


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
