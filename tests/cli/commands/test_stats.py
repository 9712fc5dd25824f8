"""`om-proxy stats` shows what memory saves and costs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.cli.answers import render_money
from om_proxy.memory.model import Key
from tests.cli.command_line import run_om_proxy
from tests.cli.stored_memory import converse, run_server, store_thread

CONFIG = ("--config", "om.yaml")


async def test_the_figures_are_those_of_the_admin_api(tmp_path: Path) -> None:
    """A server that has ended has written all of them."""
    async with run_server(tmp_path) as run:
        await converse(run, "t", 6)
        auth = {"authorization": "Bearer sk-a"}
        answered = {
            by: (await run.http.get(f"{run.base}/om/v1/stats?by={by}", headers=auth)).json()
            for by in ("day", "model", "resource", "thread")
        }
    for by, answer in answered.items():
        printed = await asyncio.to_thread(
            run_om_proxy, "stats", "--by", by, "--json", *CONFIG, cwd=tmp_path
        )
        assert orjson.loads(printed.stdout)["items"] == answer["items"], by
        assert answer["items"]
    listed = await asyncio.to_thread(run_om_proxy, "stats", *CONFIG, cwd=tmp_path)
    _, line = listed.stdout.splitlines()
    day, turns, *amounts = line.split("\t")
    assert (day, turns) == (answered["day"]["items"][0]["day"], "6")
    assert amounts[:4] == ["?"] * 4
    assert "no price is known: they are left out of the sums" in listed.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    asyncio.run(store_thread(tmp_path, Key("local", "t", "t")))
    return tmp_path


def test_days(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--from", "2026-05-01", "--to", "2026-05-31", *CONFIG]) == 0
    assert "no turn is counted yet" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["stats", "--from", "yesterday", *CONFIG])
    assert "must be a day, as in 2026-05-31" in capsys.readouterr().err
    assert main(["stats", "--by", "thread", "--from", "2026-05-01", *CONFIG]) == 2


@pytest.mark.parametrize(
    ("microdollars", "shown"),
    [
        (0, "$0.00"),
        (1_234_567, "$1.23"),
        (9_999, "$0.0100"),
        (-50, "-$0.0001"),
        (-2_500_000_000, "-$2,500.00"),
    ],
)
def test_money(microdollars: int, shown: str) -> None:
    """A loss is shown as one."""
    assert render_money(microdollars) == shown
