"""A file's reader is found by its beginning, or by a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.common.errors import NotFound
from om_proxy.proof.conversation import HistoryError
from om_proxy.proof.readers import registry
from om_proxy.proof.readers.registry import Reader, read_history

MESSAGE = '{"role":"user","content":"Hi"}\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "history.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"absent\.jsonl"):
        read_history(tmp_path / "absent.jsonl")


def test_an_unknown_file_is_an_error_that_names_all_readers(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"not recognised; .*messages"):
        read_history(write(tmp_path, '{"a":1}\n'))


def test_a_long_first_line_is_recognised(tmp_path: Path) -> None:
    """A log of requests begins with one of megabytes."""
    text = "word " * 100_000
    path = write(tmp_path, f'{{"messages":[{{"role":"user","content":"{text}"}}]}}\n{MESSAGE}')
    assert next(iter(read_history(path))).program == "messages"


def test_two_readers_that_fit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = (Reader("messages", "plain"), Reader("other", "plain"))
    monkeypatch.setattr(registry, "READERS", twice)
    with pytest.raises(HistoryError, match="fits messages, other; choose"):
        read_history(write(tmp_path, MESSAGE))


def test_an_unknown_name_is_an_error_that_names_all_readers(tmp_path: Path) -> None:
    """Each by the names that the documentation has, too."""
    with pytest.raises(HistoryError, match=r"no reader is named chaos; there are ") as refusal:
        read_history(write(tmp_path, MESSAGE), "chaos")
    assert "claude-ai = claude" in str(refusal.value)
    assert str(refusal.value).endswith("messages = openai-jsonl")
