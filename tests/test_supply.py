"""What is installed runs nothing by itself, and `scripts/audit` says what it knows and what it does
not."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A `.pth` file is run at every start of Python where a line of it begins with `import`. setuptools
# has such a one for pip's sake, this project has one where it is installed editable, and a
# developer's environment may hold virtualenv's and coverage's. Whatever else stands there may name
# folders only.
RUNS_CODE = re.compile(
    r"distutils-precedence\.pth|__editable__\.observational_memory_proxy-.*\.pth|_virtualenv\.pth|a1_coverage\.pth"
)
STARTED = {"sitecustomize.py", "usercustomize.py"}  # imported at every start, if they are there


def installed() -> Iterator[Path]:
    for folder in site.getsitepackages():
        yield from Path(folder).iterdir()


def test_no_wheel_brings_what_runs_at_every_start() -> None:
    """Neither as a file of its own nor in the name of another: it is how a stolen release of
    litellm reached every process."""
    brought = [
        (distribution.name, str(file))
        for distribution in distributions()
        for file in distribution.files or ()
        if len(file.parts) == 1 and (file.suffix == ".pth" or file.name in STARTED)
    ]
    assert [
        found
        for found in brought
        if found[0] not in ("setuptools", "virtualenv", "coverage", "observational-memory-proxy")
    ] == []


def test_what_is_there_runs_nothing() -> None:
    """Also what no wheel admits to having brought."""
    there = [file for file in installed() if file.suffix == ".pth" or file.name in STARTED]
    code = re.compile(r"^import[ \t]", re.MULTILINE)
    assert [
        f.name
        for f in there
        if f.name in STARTED or (not RUNS_CODE.fullmatch(f.name) and code.search(f.read_text()))
    ] == []


AUDITS = {
    "clean": ("echo 'No known vulnerabilities found'", 0, "No known"),
    "found": ("echo 'Found 2 known vulnerabilities in 1 package'; exit 1", 1, "Found 2"),
    "unreachable": (
        "echo 'requests.exceptions.ConnectionError: no such host' >&2; exit 1",
        3,
        "Nothing is known either way",
    ),
    "unknown to it": (
        "echo 'ERROR: Dependency not found and could not be audited: x' >&2; exit 1",
        3,
        "Nothing is known",
    ),
    "not installed": (None, 3, "Nothing was checked"),
}


@pytest.mark.parametrize("case", AUDITS)
def test_audit(tmp_path: Path, case: str) -> None:
    """Three ends: nothing known, something known, nobody to ask. A service out of reach is never
    taken for good news."""
    says, status, told = AUDITS[case]
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for lock in ("requirements.lock", ".venv/installed.lock"):
        (tmp_path / lock).parent.mkdir(exist_ok=True)
        (tmp_path / lock).write_text("x==1\n")
    # `python -m venv <folder>` makes a folder with a pip that can install, or cannot, and with the
    # auditor of this case
    program(tmp_path / ".venv/bin/python", f"""
        [[ "$1 $2" == "-m venv" ]] && mkdir -p "$3/bin"
        printf '#!/usr/bin/env bash\\n%s\\n' {"'exit 0'" if says else "'exit 1'"} > "$3/bin/python"
        printf '#!/usr/bin/env bash\\n%s\\n' {quoted(says or "exit 9")} > "$3/bin/pip-audit"
        chmod +x "$3/bin/python" "$3/bin/pip-audit" """)  # fmt: skip
    done = subprocess.run(
        [tmp_path / "scripts/audit"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == status, done
    assert told in done.stdout + done.stderr


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
