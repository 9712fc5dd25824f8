"""What a request costs our own code stays as it was, and what an idle server takes: counted in
bytecode instructions, modules and bytes of objects, which a busy machine does not change."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.bench.opcodes import COST_FILE

ALLOWED_SHARE = 0.03
COUNTED_WITH = (3, 11)  # each version compiles to other instructions


@pytest.mark.skipif(
    sys.version_info[:2] != COUNTED_WITH, reason=f"counted with Python {COUNTED_WITH}"
)
def test_no_state_costs_more() -> None:
    """A change that needs more writes the file anew, `python -m tests.bench.opcodes --write`, and
    says why in its commit. One that needs less does, too: else the next one may spend it unseen."""
    command = [sys.executable, "-m", "tests.bench.opcodes"]  # no other test's threads are counted
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(run.stdout[run.stdout.index("{\n") :])
    known = json.loads(COST_FILE.read_text())
    assert found.keys() == known.keys()
    changed = {
        state: (known[state], count)
        for state, count in found.items()
        if abs(count / known[state] - 1) > ALLOWED_SHARE
    }
    assert changed == {}, "state: (count in request_cost.json, count now)"
