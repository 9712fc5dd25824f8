"""A server's banner."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.command_line import MISPLACED_KEY_CONFIG, serve_in


def test_the_banner_repeats_no_secret(tmp_path: Path) -> None:
    """The banner ends in logs, so it shows no secret of the settings."""
    with serve_in(tmp_path, MISPLACED_KEY_CONFIG) as (process, _):
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert "sqlite:///om.db" in out
    assert re.search(r"^dashboard: http://127\.0\.0\.1:\d+/om/$", out, re.M)
    assert "hush" not in out + err
    assert "sk-proj" not in out + err
