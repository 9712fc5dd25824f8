"""The program of docs/guides/library.md, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "library.md"


def test_the_program_prints_what_the_page_says() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert [
        line for line in run.stdout.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)
    ] == (printed.splitlines())
