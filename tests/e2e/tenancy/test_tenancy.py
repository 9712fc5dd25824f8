"""Tenants do not meet, and a test notices when anything that keeps them apart is taken away;
`scripts/tenancy` is the long form."""

from __future__ import annotations

import subprocess
import sys

OPERATIONS = 2_000


def ran(module: str, *arguments: str) -> str:
    """What the program printed; it must have been content. A process of its own: all it writes to
    stderr is looked at as its log."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    return done.stdout


def test_nobody_sees_what_is_another_s() -> None:
    """Prompts, answers, memories, rows and logs of sixteen tenants with the same names, talking,
    leaving and pretending all at once."""
    assert "0 breaches" in ran("tests.e2e.tenancy", "--operations", str(OPERATIONS))


def test_every_predicate_on_the_tenant_is_needed() -> None:
    """Each one in the storage's SQL, and some of what else tells tenants apart."""
    told = ran("tests.e2e.tenancy.mutants", "--quick")
    assert " 0 survived" in told
    assert told.count("noticed in") >= 11
