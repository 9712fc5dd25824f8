"""`om-proxy store receipt` tells a genuine receipt from another."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.canary_threads import store_canary_threads
from tests.cli.command_line import CONFIG

USER = Key("local", "ana", "kitchen")


@pytest.fixture
def receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The receipt of a forgotten resource, in `receipt.json`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "om.yaml").write_text(CONFIG)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    asyncio.run(store_canary_threads(tmp_path / "om.db", USER, Key("local", "ben", "garden")))
    assert main(["forget", "--all", "--resource", "ana", "--yes", "--json"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "receipt.json").write_text(text)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"sort_keys": True}])
def test_a_genuine_receipt(
    receipt: dict[str, Any], layout: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """However a program has laid it out."""
    Path("receipt.json").write_text(json.dumps(receipt, **layout))
    assert main(["store", "receipt", "receipt.json"]) == 0
    assert capsys.readouterr().out == (
        "this store signed the receipt, and nothing in it was changed\n"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"label": "f" * 16},
        {"at": 1.7e9},
        {"scope": "tenant"},
        {"bytes": {"database": "gone", "log": "gone", "backups": "gone"}},
        {"signature": "f" * 64},
        {"signature": None},
        {"signature": "é"},
        {"note": "and all backups"},
    ],
    ids=str,
)
def test_a_changed_receipt(
    receipt: dict[str, Any], change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("receipt.json").write_text(json.dumps(receipt | change))
    assert main(["store", "receipt", "receipt.json"]) == 1
    assert capsys.readouterr().out == "the receipt was changed, or another store signed it\n"


@pytest.mark.parametrize(
    ("named", "status"),
    [
        (["--resource", "ana"], 0),
        (["--resource", "ana", "--tenant", "local"], 0),
        (["--resource", "ben"], 1),
        (["--resource", "ana", "--tenant", "other"], 1),
        (["--thread", "kitchen", "--resource", "ana"], 1),
    ],
)
def test_a_receipt_is_about_what_is_named(
    receipt: dict[str, Any], named: list[str], status: int
) -> None:
    """Its label says so to who has the store, and to nobody else."""
    assert main(["store", "receipt", "receipt.json", *named]) == status


def test_a_receipt_that_is_no_longer_kept_needs_its_tenant(
    receipt: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("receipt.json").write_text(json.dumps(receipt))
    with closing(sqlite3.connect("om.db")) as db, db:
        db.execute("DELETE FROM receipt")
    verify = ["store", "receipt", "receipt.json"]
    assert main(verify) == 0
    assert main([*verify, "--resource", "ana"]) == 2
    assert "give the --tenant" in capsys.readouterr().err
    assert main([*verify, "--resource", "ana", "--tenant", "local"]) == 0


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"no JSON"])
def test_a_file_that_holds_no_receipt(
    receipt: dict[str, Any], content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("receipt.json").write_bytes(content)
    assert main(["store", "receipt", "receipt.json"]) == 2
    assert capsys.readouterr().err == (
        "om-proxy: receipt.json holds no receipt: give the JSON that the forgetting answered\n"
    )


def test_a_missing_file(receipt: dict[str, Any]) -> None:
    assert main(["store", "receipt", "nowhere.json"]) == 2
