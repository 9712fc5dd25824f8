"""`om-proxy search` finds messages by words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.stored_memory import store_thread

FOUND_MESSAGE_OUTPUT = """\
kitchen m{seq} of ana, user, {at}
They keep bees.

"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OM_PROXY_CONFIG", "om.yaml")
    monkeypatch.setenv("TZ", "UTC")
    asyncio.run(store_thread(tmp_path, Key("local", "ana", "kitchen")))
    asyncio.run(store_thread(tmp_path, Key("local", "zoe", "attic"), text="\x1b[2JThey keep wax."))
    return tmp_path


def test_what_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is searched in all resources or in one, and printed the same each time."""
    assert main(["search", "bees"]) == 0
    out, err = capsys.readouterr()
    at = out.split("user, ")[1].split("\n")[0]
    # a note that has the word lifts the message that it stands for
    assert out == FOUND_MESSAGE_OUTPUT.format(seq=1, at=at) + FOUND_MESSAGE_OUTPUT.format(
        seq=2, at=at
    )
    assert err == ""
    assert main(["search", "bees zeta", "--resource", "zoe"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "no message has: bee, zeta" in err
    assert "nothing found" in err
    assert main(["search", "keep", "--limit", "1", "--json"]) == 0
    answer = orjson.loads(capsys.readouterr().out)
    assert (len(answer["items"]), answer["total"]) == (1, 4)


def test_several_words_and_tenants(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words need no quotes, and all tenants are searched, one after the other."""
    assert main(["search", "they", "keep", "bees", "--resource", "ana"]) == 0
    one = capsys.readouterr().out
    assert "They keep bees." in one
    asyncio.run(store_thread(folder, Key("5f" * 32, "ana", "cellar")))
    assert main(["search", "keep", "bees"]) == 0
    out = capsys.readouterr().out
    assert out.index("tenant 5f5f5f5f:\n") < out.index("cellar m") < out.index("tenant local:\n")


@pytest.mark.parametrize("searched", ["messages", "notes"])
def test_all_tenants_are_one_document(
    folder: Path, capsys: pytest.CaptureFixture[str], searched: str
) -> None:
    """A program reads one answer of the admin API's shape, whose lines name their tenants. A word
    is missing if no tenant has it."""
    asyncio.run(store_thread(folder, Key("5f" * 32, "ana", "cellar"), text="They keep ham."))
    assert main(["search", "keep wax zeta", "--in", searched, "--json"]) == 0
    answer = orjson.loads(capsys.readouterr().out)
    lines = answer["items" if searched == "messages" else "notes"]
    assert {line["tenant"] for line in lines} == {"5f" * 32, "local"}
    assert answer["total"] == len(lines)
    assert answer["searched"] == 3
    assert answer["missing"] == (["zeta"] if searched == "messages" else [])
    assert (answer["share_read"], answer["left_out"]) == (1.0, False)


FOUND_NOTE_OUTPUT = """\
kitchen of ana, entry 1, [m1], {at}
They keep bees.

"""


def test_notes_that_are_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only active ones; a chunk waits."""
    assert main(["search", "bees", "--in", "notes"]) == 0
    out, err = capsys.readouterr()
    at = out.split("[m1], ")[1].split("\n")[0]
    assert (out, err) == (FOUND_NOTE_OUTPUT.format(at=at), "")
    assert main(["search", "keep", "--in", "notes", "--limit", "1"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out
    assert "2 lines fit: raise --limit for more" in err
    assert main(["search", "keep", "--in", "notes", "--resource", "zoe", "--json"]) == 0
    answer = orjson.loads(capsys.readouterr().out)
    assert [(note["thread"], note["entry"]) for note in answer["notes"]] == [("attic", 1)]
    assert answer["items"] == []


def test_nothing_commands_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "wax", "--thread", "attic"]) == 0
    out, _ = capsys.readouterr()
    assert "They keep wax." in out
    assert "\x1b" not in out


def test_limits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["search", "wax", "--limit", "101"])
    assert "must be 1 to 100" in capsys.readouterr().err


def test_imported_messages_are_all_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A search reads the newest and indexes some of the others, and does not say of the rest that
    none has a word."""
    lines = (orjson.dumps({"role": "user", "content": f"Crate{n}."}) for n in range(2_600))
    Path("crates.jsonl").write_bytes(b"\n".join(lines))
    whose = ("--resource", "max", "--tenant", "local")
    assert main(["import", "--from", "openai-jsonl", "crates.jsonl", *whose]) == 0
    capsys.readouterr()
    assert main(["search", "crate10", "--resource", "max"]) == 0
    err = capsys.readouterr().err
    assert "no message that was searched has: crate10" in err
    assert "of the messages could be searched; `om-proxy store index` makes" in err
    assert main(["store", "index"]) == 0
    assert main(["search", "crate10", "--resource", "max"]) == 0
    out, err = capsys.readouterr()
    assert "Crate10." in out
    assert err == ""
