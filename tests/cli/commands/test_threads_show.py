"""`om-proxy threads THREAD` shows the state of a thread's memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from om_proxy.cli import main
from om_proxy.cli.commands.threads import render_saving
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread

LINES = [
    "thread: kitchen",
    "resource: ana",
    "tenant: local",
    "title: Bees",
    "messages: 2 messages; 7 of 1 200 tokens before observation",
    "notes: 1 entry, 0 of them condensed; 30 of 900 tokens before reflection; generation 0",
    "ready notes: 30 tokens wait to take the place of 40",
    "saved: $0.00 of $0.00, in 0 turns, look-ups included",
    "memory work: works",
]


def show(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["threads", "kitchen", "--config", str(folder / "om.yaml")]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_windows_are_named_by_what_they_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen"), title="Bees"))
    lines = show(tmp_path, capsys)
    assert [line for line in lines if not line.startswith("in the log: ")] == LINES


@pytest.mark.parametrize(
    ("failures", "said"),
    [(1, "failing, 1 failure in a row"), (12, "given up, 12 failures in a row")],
)
def test_failures_come_with_their_cause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failures: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen"), failures=failures))
    last = show(tmp_path, capsys)[-1]
    assert last.startswith(f"memory work: {said}: observing failed: the memory model's server")
    assert "next try at 20" in last


def test_without_any_price_the_saving_is_unknown() -> None:
    """$0.00 would say that memory saved nothing."""
    unknown = Mock(turns=3, priced=False, saving=Mock(net=0, baseline=0))
    assert render_saving(unknown) == "unknown (no price is known)"
    partly = Mock(turns=3, priced=False, saving=Mock(net=500, baseline=1_000))
    assert render_saving(partly) == (
        "$0.0005 of $0.0010, in 3 turns, look-ups included; of some models no price is known"
    )


def test_an_unknown_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 4."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen")))
    assert main(["threads", "cellar", "--config", "om.yaml"]) == 4
    assert capsys.readouterr() == (
        "",
        "om-proxy: there is no memory of a thread cellar in this store\n",
    )
