"""Replicas on one PostgreSQL, killed while clients talk: nothing is lost, doubled or stale.
scripts/replicas does the same for longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.replicas.planted import FAULTS
from tests.e2e.replicas.running import Plan, run_replicas
from tests.support.postgres_server import find_postgres_url

pytestmark = pytest.mark.slow

SHORT = Plan(seconds=5, kills=3, turns=40, replicas=2, clients=5, kill_every_s=0.8)


async def test_replicas_that_are_killed(tmp_path: Path) -> None:
    report = await run_replicas(find_postgres_url(), tmp_path, SHORT)
    assert not report.findings, str(report)
    assert not report.notebook.errors
    assert report.kills >= SHORT.kills
    assert len(report.history.prompts) >= SHORT.turns
    assert report.history.leases


async def test_replicas_with_a_planted_fault(tmp_path: Path) -> None:
    """The run would show it: a process that does not ask what others have written."""
    fault = "cache-kept"
    plan = replace(SHORT, seconds=1, kills=0, kill_every_s=1_000, fault=fault)
    report = await run_replicas(find_postgres_url(), tmp_path, plan)
    assert getattr(report.findings, FAULTS[fault][1]), str(report)
