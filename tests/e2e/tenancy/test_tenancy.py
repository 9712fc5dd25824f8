"""Tenants do not meet, and a test notices when anything that keeps them apart is taken away;
`scripts/tenancy` is the long form."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.tenancy.mutants import list_mutants
from tests.e2e.tenancy.mutation import HOW_TO_LEARN, find_differences, load_table
from tests.support.long_forms import IS_LONG

OPERATIONS = 2_000 if IS_LONG else 900
EVERY = 1 if IS_LONG else 4  # mutant
# against a program that hangs: a busy machine takes long for anything
HANG_TIMEOUT_S = 7_200


def ran(module: str, *arguments: str) -> str:
    """What the program printed; it must have been content. A process of its own: all it writes to
    stderr is looked at as its log."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    return done.stdout


def test_nobody_sees_what_is_another_s() -> None:
    """Prompts, answers, memories, rows and logs of sixteen tenants with the same names, talking,
    leaving and pretending all at once."""
    assert "0 breaches" in ran("tests.e2e.tenancy", "--operations", str(OPERATIONS))


def test_every_predicate_on_the_tenant_is_needed() -> None:
    """Each one in the storage's SQL, and what else tells tenants apart: of every fourth mutant, and
    in the long form of each, the test that `noticed_by.json` names fails."""
    told = ran("tests.e2e.tenancy.mutation", "--quick", "--every", str(EVERY))
    assert " 0 survived" in told
    assert told.count("noticed in") >= 50 // EVERY


def test_a_new_predicate_is_asked_for() -> None:
    """A predicate that the table does not know, and a line of the table whose predicate is gone,
    are told by name."""
    mutants, table = list_mutants(), load_table()
    assert list(find_differences(mutants, table)) == [], HOW_TO_LEARN
    [name, *_] = mutants
    changed = {"an older line": None, **table}
    del changed[name]
    assert list(find_differences(mutants, changed)) == [
        f"not in the table: {name}",
        "there no more: an older line",
    ]
