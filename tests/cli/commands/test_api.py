"""`om-proxy api` asks any route of the admin API, with or without a server."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a thread `kitchen` of the resource `ana`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen")))
    return tmp_path


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["api", *arguments]) == 0
    answer: dict[str, object] = orjson.loads(capsys.readouterr().out)
    return answer


def test_every_route_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["api"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [[route.method, route.path, route.summary] for route in ADMIN_ROUTES]


def test_a_change_of_a_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """A thread is looked up by its name. A change is in the audit, with who made it."""
    assert ask(capsys, "POST", "/threads/kitchen/park")["parked"] is True
    version = ask(capsys, "GET", "/threads/kitchen?resource=ana")["version"]
    assert isinstance(version, int)
    revive = ("api", "POST", "/om/v1/threads/kitchen/revive", "--if-version")
    assert main([*revive, str(version - 1)]) == 5
    assert main([*revive, str(version)]) == 0
    capsys.readouterr()
    audit = orjson.dumps(ask(capsys, "get", "/audit?limit=2")).decode()
    assert re.findall(r'"who":"(\w+)".*?"what":"(\w+)"', audit) == [
        ("cli", "revive"),
        ("cli", "park"),
    ]


def test_messages_as_the_model_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    body = '{"mode": "messages", "cursor": "m2"}'
    found = ask(capsys, "POST", "/threads/kitchen/recall", "--resource", "ana", "--data", body)
    assert str(found["messages"]).startswith("m2 to m2 of m1 to m2\n[m2] user, ")
    assert main(["api", "POST", "/threads/kitchen/recall", "--data", '{"cursor": "m9"}']) == 4
    assert "m1 to m2" in capsys.readouterr().err


def test_a_body_comes_from_a_file_or_a_pipe(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation becomes a thread that was not there."""
    request = {"model": "m", "messages": [{"role": "user", "content": "Bees?"}]}
    (folder / "chat.json").write_bytes(orjson.dumps(request))
    path = "/threads/attic/messages?tenant=local"
    assert ask(capsys, "POST", path, "--data", "@chat.json")["created"] == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(orjson.dumps(request))))
    assert ask(capsys, "POST", path, "--data", "@-")["created"] == 0
    assert main(["api", "POST", path, "--data", "@nowhere.json"]) == 2


def test_an_export_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["api", "GET", "/export?thread=kitchen&resource=ana"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert orjson.loads(out[-1])["om"] == "end"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["GET"], 2, "name the path too"),
        (["GET", "/nothing"], 2, "there is no route GET /nothing"),
        (["DELETE", "/threads"], 2, "there is no route DELETE /threads"),
        (["GET", "/threads/cellar"], 4, "no memory"),
        (["GET", "/threads?colour=red"], 2, "the query has no colour"),
        (["GET", "/threads", "--data", "{}"], 2, "takes no body"),
        (["PATCH", "/threads/kitchen", "--data", "no JSON"], 2, "the body is not JSON"),
        (["GET", "/threads/kitchen/messages/first"], 4, "an id in the path is a number"),
    ],
)
def test_wrong_use(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert main(["api", *arguments]) == status
    assert said in capsys.readouterr().err
