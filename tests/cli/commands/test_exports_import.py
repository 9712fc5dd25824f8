"""`om-proxy import` reads what `om-proxy export` wrote."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread

CONFIG = ("--config", "om.yaml")
MAPS = ("--tenant-map", "a=b", "--tenant-map", "a=c")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store of two tenants, and a configuration of a new store beside it."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t"), "bees"))
    asyncio.run(store_thread(tmp_path, Key("team", "u", "u"), "wasps"))
    Path("new.yaml").write_text("storage: {url: sqlite:///new.db}\n")
    return tmp_path


def test_store_goes_to_another_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its secret; its export is the same there. What is there already is told."""
    assert main(["export", "--all", "--with-secret", "--output", "all.jsonl", *CONFIG]) == 0
    arguments = ["import", "all.jsonl", "--config", "new.yaml"]
    assert main([*arguments, "--dry-run"]) == 0
    assert "would be imported: 2 threads" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "imported: 2 threads" in capsys.readouterr().out
    new = ("--config", "new.yaml")
    assert main(["export", "--all", "--with-secret", "--output", "again.jsonl", *new]) == 0
    assert Path("again.jsonl").read_bytes() == Path("all.jsonl").read_bytes()
    assert main(arguments) == 0
    assert "imported: 0 threads with 0 messages\nalready there: 2" in capsys.readouterr().out


def test_secret_is_not_printed_by_accident(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--tenant", "team", "--with-secret", *CONFIG]) == 2
    assert "--yes" in capsys.readouterr().err
    assert main(["export", "--tenant", "team", "--with-secret", "--yes", *CONFIG]) == 0
    header = json.loads(capsys.readouterr().out.splitlines()[0])
    assert len(bytes.fromhex(header["secret"])) == 32
    assert main(["export", "--tenant", "team", *CONFIG]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["secret"] is None
    assert main(["export", "--all", "--tenant", "team", *CONFIG]) == 2


def test_wrong_use_says_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    Path("empty.jsonl").touch()
    Path("folder").mkdir()
    Path("broken.jsonl").write_text('{"om":"export","format":1,"secret":null}\n{oh}\n')
    for arguments, said in (
        (("nowhere.jsonl",), "nowhere.jsonl does not exist"),
        (("folder",), "folder is no file; name what `om-proxy export --output` has written"),
        (("empty.jsonl",), "this is empty, so it is no export: give what `om-proxy export`"),
        (("broken.jsonl", "--tenant-map", "a"), "write OLD=NEW"),
        (("broken.jsonl", *MAPS), "--tenant-map names a twice"),
        (("broken.jsonl",), "line 2: this is no JSON"),
    ):
        assert main(["import", *arguments, "--config", "new.yaml"]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_tenant_map_must_name_tenants_of_the_export(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped name would leave threads under the old one, where no client finds them."""
    assert main(["export", "--all", "--with-secret", "--output", "all.jsonl", *CONFIG]) == 0
    arguments = ["import", "all.jsonl", "--config", "new.yaml", "--tenant-map"]
    assert main([*arguments, "taem=new"]) == 2
    said = "om-proxy: the export has no tenant taem; it has local, team; nothing was imported\n"
    assert capsys.readouterr().err == said
    assert main([*arguments, "team=new"]) == 0
    capsys.readouterr()
    assert main(["threads", "--tenant", "new", "--config", "new.yaml"]) == 0
    assert "\nu\tu\t" in capsys.readouterr().out


def test_another_state_is_a_conflict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--tenant", "team", "--output", "u.jsonl", *CONFIG]) == 0
    asyncio.run(store_thread(folder, Key("team", "u", "v"), "hornets"))
    Path("u.jsonl").write_bytes(
        Path("u.jsonl").read_bytes().replace(b'"thread":"u"', b'"thread":"v"')
    )
    assert main(["import", "u.jsonl", *CONFIG]) == 5
    assert "nothing was imported" in capsys.readouterr().err
    assert main(["import", "u.jsonl", "--skip-existing", *CONFIG]) == 0
    assert "left as they are in the store: 1" in capsys.readouterr().out
