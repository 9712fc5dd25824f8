"""A label has a limited number of values, over all processes of a server."""

from __future__ import annotations

import fcntl
from pathlib import Path

from om_proxy.observability.figures.label_limit import LabelLimit


def test_values_up_to_the_limit() -> None:
    limit = LabelLimit(2)
    assert [limit.admit(value) for value in ("a", "b", "c", "a")] == [True, True, False, True]


def test_processes_share_the_limit(tmp_path: Path) -> None:
    """A value that one process admitted is admitted by the other, and counts once."""
    file = tmp_path / "models"
    first, second = LabelLimit(3, file), LabelLimit(3, file)
    assert [first.admit("a"), second.admit("b"), first.admit("b")] == [True, True, True]
    assert [first.admit("c"), second.admit("d"), second.admit("c")] == [True, False, True]
    assert file.read_text().split() == ["a", "b", "c"]


def test_a_held_lock_delays_nobody(tmp_path: Path) -> None:
    """The value is `other` for now, and is asked for again."""
    file = tmp_path / "models"
    limit = LabelLimit(3, file)
    with file.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert limit.admit("a") is None
    assert limit.admit("a")


def test_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """A process that was killed while it wrote."""
    file = tmp_path / "models"
    file.write_text("gpt-4o\ngpt-4")
    limit = LabelLimit(9, file)
    assert limit.admit("o3")
    assert LabelLimit(9, file).admit("gpt-4o")
    assert file.read_text() == "gpt-4o\ngpt-4\no3\n"


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    assert LabelLimit(3, tmp_path / "gone" / "models").admit("a") is None
