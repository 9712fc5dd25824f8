"""Replicas on one PostgreSQL, killed while clients talk: nothing is lost, doubled or stale.
scripts/replicas does the same for longer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from om_proxy.storage.migrate import list_migrations
from tests.e2e.replicas.plan import Plan
from tests.e2e.replicas.planted import FAULTS
from tests.e2e.replicas.running import run_replicas
from tests.support.long_forms import long_form
from tests.support.postgres_server import find_postgres_url

pytestmark = pytest.mark.slow

SHORT = Plan(seconds=5, kills=3, turns=40, replicas=2, clients=5, kill_every_s=0.8)


async def test_replicas_that_are_killed(tmp_path: Path) -> None:
    report = await run_replicas(find_postgres_url(), tmp_path, SHORT)
    assert not report.findings, str(report)
    assert not report.notebook.errors
    assert report.replicas.kills >= SHORT.kills
    assert len(report.history.prompts) >= SHORT.turns
    assert report.history.leases


@long_form
async def test_a_rolling_upgrade_and_back(tmp_path: Path) -> None:
    """Replicas of two releases serve side by side while one replaces the other, and while the older
    one comes back to a database that the newer one has changed. Nobody sees an error, and no
    thread is without memory twice in a row."""
    plan = replace(SHORT, seconds=0, kills=0, turns=20, clients=2, leaving_share=0.0, rolls=2)
    report = await run_replicas(find_postgres_url(), tmp_path, plan)
    assert not report.findings, str(report)
    assert report.replicas.replaced == 2 * plan.replicas
    assert report.schema_version == list_migrations("postgres")[-1].number + 1
    assert not report.notebook.errors
    by_thread: dict[str, list[bool]] = defaultdict(list)
    for turn in report.notebook.turns:
        by_thread[turn.thread].append(turn.has_memory)
        assert turn.outcome == "acknowledged" or not turn.has_memory
    for had_memory in by_thread.values():
        assert all(before or after for before, after in pairwise(had_memory))


async def test_replicas_with_a_planted_fault(tmp_path: Path) -> None:
    """The run would show it: a process that does not ask what others have written."""
    fault = "cache-kept"
    plan = replace(SHORT, seconds=1, kills=0, kill_every_s=1_000, fault=fault)
    report = await run_replicas(find_postgres_url(), tmp_path, plan)
    assert getattr(report.findings, FAULTS[fault][1]), str(report)
