"""`om-proxy init`: the file it writes, and the file it does not overwrite."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.command_line import ROOT, run_om_proxy


def test_init_writes_the_annotated_file(tmp_path: Path) -> None:
    """It writes the project's own file, which `check` then reads without an option."""
    done = run_om_proxy("init", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    written = tmp_path / "config" / "om-proxy.yaml"
    assert written.read_text(encoding="utf-8") == (ROOT / "config" / "om-proxy.yaml").read_text(
        encoding="utf-8"
    )
    assert run_om_proxy("check", cwd=tmp_path).stdout.startswith("settings: config/om-proxy.yaml\n")


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    """An existing file stays as it is, and the error says what to do."""
    (tmp_path / "mine.yaml").write_text("memory: false\n")
    done = run_om_proxy("init", "mine.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "mine.yaml exists already" in done.stderr
    assert (tmp_path / "mine.yaml").read_text() == "memory: false\n"


def test_init_where_nothing_may_be_written(tmp_path: Path) -> None:
    """A path below a file is a one-line error."""
    (tmp_path / "file").touch()
    done = run_om_proxy("init", "file/om-proxy.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert re.match(r"om-proxy: file/om-proxy\.yaml .*\n$", done.stderr)
