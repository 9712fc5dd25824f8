"""Exports of any size, in any wrapping."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pytest

from om_proxy.proof.conversation import HistoryError
from om_proxy.proof.readers import exports
from om_proxy.proof.readers.exports import read_elements
from om_proxy.proof.readers.registry import read_history

CHAT = {
    "uuid": "c1",
    "name": "Crates",
    "chat_messages": [{"uuid": "1", "sender": "human", "text": "Where is crate 7?"}],
}


def split(data: bytes) -> tuple[list[Any], dict[str, int]]:
    notices: Counter[str] = Counter()
    return list(read_elements(io.BytesIO(data), notices)), dict(notices)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1 << 20])
def test_an_array_is_read_wherever_its_pieces_end(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Brackets, quotes and backslashes inside of texts are no marks."""
    monkeypatch.setattr(exports, "PIECE_BYTES", piece_bytes)
    objects = [{}, {"a": ['}"]', "\\", '\\"', [{"b": {}}]]}, {"c": "é😀"}]
    text = json.dumps(objects, indent=1).encode()
    assert split(b" \n" + text + b"\n")[0] == objects
    assert split(json.dumps(objects[1]).encode())[0] == objects[1:2]


@pytest.mark.parametrize(
    ("data", "objects", "notices"),
    [
        (b"", [], {}),
        (b"[]", [], {}),
        (b"]}", [], {}),
        (b'[{"a": 1}, {"b": "to', [{"a": 1}], {"unreadable lines": 1}),
        (b'[{"a": 1}, {b}, {"c": 1}]', [{"a": 1}, {"c": 1}], {"unreadable lines": 1}),
        (b'[[1], "x", {"c": 1}]', [{"c": 1}], {"skipped: no object": 1}),
        (b'[{"a": "\xff"}]', [{"a": "\ufffd"}], {"mended lines": 1}),
    ],
)
def test_a_torn_array(data: bytes, objects: list[Any], notices: dict[str, int]) -> None:
    """What is whole is read, and the rest is counted."""
    found, counts = split(data)
    counts.pop("lines", 0)
    assert (found, counts) == (objects, notices)


def test_a_conversation_that_is_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_LINE_BYTES", 2_000)
    monkeypatch.setattr(exports, "PIECE_BYTES", 512)
    objects = [{"a": "x" * 1_000}, {"b": "x" * 9_000}, {"c": 1}]
    found, counts = split(json.dumps(objects).encode())
    assert found == [objects[0], objects[2]]
    assert counts["unreadable lines"] == 1


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_an_archive_gives_its_conversations_only(tmp_path: Path) -> None:
    """In the order of their names; nothing beside them is opened, and nothing is unpacked."""
    part = json.dumps([CHAT]).encode()
    other = json.dumps([CHAT | {"uuid": "c2"}]).encode()
    path = write_zip(
        tmp_path / "export.zip",
        {
            "data/conversations-001.json": other,
            "data/conversations-000.json": part,
            "../conversations.json": b"no",
            "user.json": b"no",
        },
    )
    link = ZipInfo("conversations.json")
    link.external_attr = 0o120777 << 16
    with ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert [found.id for found in read_history(path)] == ["c1", "c2"]
    assert [one.name for one in tmp_path.iterdir()] == ["export.zip"]


def test_an_archive_that_unpacks_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MAX_UNPACKED_BYTES", 1_000)
    path = write_zip(tmp_path / "bomb.zip", {"conversations.json": b" " * 1_001})
    with pytest.raises(HistoryError, match="more than 4 GB"):
        list(read_history(path, "chatgpt"))


def test_an_archive_that_is_torn(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "torn.zip", {"conversations.json": json.dumps([CHAT]).encode()})
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(HistoryError, match=r"torn\.zip"):
        list(read_history(path, "claude-ai"))


def test_an_archive_with_any_byte_changed(tmp_path: Path) -> None:
    """It is read, or it is an error that names it: nothing else comes of a damaged archive."""
    whole = tmp_path / "whole.zip"
    with ZipFile(whole, "w", ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", json.dumps([CHAT]))
    data, path, refused = whole.read_bytes(), tmp_path / "changed.zip", 0
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        for program in ("claude-ai", None):
            try:
                list(read_history(path, program))
            except HistoryError as exc:
                refused += "changed.zip" in str(exc)
    assert refused > len(data)


@pytest.mark.parametrize("text", ["", "[]", '[{"uuid": "c", "chat_messages": []}]', "{"])
def test_an_export_without_a_conversation(tmp_path: Path, text: str) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(text)
    with pytest.raises(HistoryError, match="no conversation of claude-ai can be read"):
        list(read_history(path, "claude-ai"))


def test_an_export_of_some_hundred_megabytes(tmp_path: Path) -> None:
    """It takes less than 300 MB of memory, with a conversation of 5 000 messages in it."""
    path = tmp_path / "conversations.json"
    with path.open("w") as file:
        file.write("[")
        for number in range(50):
            long, count = (1, 5_000) if number == 7 else (10, 500)
            said = [
                {"sender": ("human", "assistant")[n % 2], "text": 'A "crate" {7}. ' * 60 * long}
                for n in range(count)
            ]
            file.write(json.dumps({"uuid": f"c{number}", "chat_messages": said}) + ",")
        file.write(json.dumps(CHAT) + "]")
    assert path.stat().st_size > 200 << 20
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from om_proxy.proof.readers.registry import read_history\n"
        "counts = [len(found.messages) for found in read_history(sys.argv[1])]\n"
        # of this program alone: ru_maxrss begins with what the process held that started it
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text()).group(1)\n"
        "print(len(counts), sum(counts), peak)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    conversations, messages, peak_kib = map(int, ran.stdout.split())
    assert (conversations, messages) == (51, 29_501)
    assert peak_kib < 300 << 10
