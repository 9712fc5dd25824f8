"""Replicas on one PostgreSQL, killed while clients talk: nothing is lost, doubled or stale.
scripts/replicas does the same for longer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from om_proxy.storage.shared.migrate import list_migrations
from tests.e2e.replicas.plan import (
    WRONG_CLOCKS_S,
    Plan,
    plan_kills,
    plan_meetings,
    plan_restore,
)
from tests.e2e.replicas.planted import FAULTS
from tests.e2e.replicas.running import Report, run_replicas
from tests.support.long_forms import IS_LONG, long_form
from tests.support.own_postgres import OwnPostgres, own_postgres
from tests.support.postgres_server import find_postgres_url

pytestmark = pytest.mark.slow

SHORT = Plan(seconds=5, kills=3, turns=40, replicas=2, clients=5, kill_every_s=0.8)
if not IS_LONG:
    SHORT = replace(SHORT, seconds=3, kills=2, turns=30)


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


def check_shown(fault: str, report: Report) -> None:
    """The checker has found the fault that was planted."""
    assert any(getattr(report.findings, name) for name in FAULTS[fault].findings), str(report)


async def test_replicas_with_a_planted_fault(tmp_path: Path) -> None:
    """The run would show it: a process that does not ask what others have written."""
    fault = "cache-kept"
    plan = replace(SHORT, seconds=1, kills=0, kill_every_s=1_000, fault=fault)
    report = await run_replicas(find_postgres_url(), tmp_path, plan)
    check_shown(fault, report)


async def test_turns_of_a_resource_that_end_at_once(tmp_path: Path) -> None:
    plan = plan_meetings(0.0)
    if not IS_LONG:
        plan = replace(plan, turns=40)
    report = await run_replicas(find_postgres_url(), tmp_path, plan)
    assert not report.findings, str(report)
    assert not report.notebook.errors


@long_form
@pytest.mark.parametrize("fault", ["for-share", "no-hub-lock"])
async def test_turns_of_a_resource_without_its_lock(tmp_path: Path, fault: str) -> None:
    """The run above would show it: two turns at once hold the row of the shared log."""
    plan = replace(plan_meetings(0.0), fault=fault)
    report = await run_replicas(find_postgres_url(), tmp_path, plan)
    check_shown(fault, report)


@pytest.fixture
def server() -> Iterator[OwnPostgres]:
    with own_postgres() as server:
        server.start()
        yield server


async def test_a_store_that_is_taken_back(tmp_path: Path, server: OwnPostgres) -> None:
    """No process tells what it has read of the lost state, and none writes on top of it."""
    plan = plan_restore(0.0)
    if not IS_LONG:
        plan = replace(plan, turns=80)
    report = await run_replicas(server.url, tmp_path, plan, server)
    assert not report.findings, str(report)
    assert not report.notebook.errors
    [restore] = report.history.restores
    assert any(restore.undoes(turn.began_at) for turn in report.history.turns)


@long_form
async def test_a_cache_that_is_kept_over_a_reconnect(tmp_path: Path, server: OwnPostgres) -> None:
    """The run above would show it."""
    fault = "cache-over-reconnect"
    plan = replace(plan_restore(0.0), fault=fault)
    report = await run_replicas(server.url, tmp_path, plan, server)
    check_shown(fault, report)


@long_form
@pytest.mark.parametrize("fault", ["no-version-check", "host-clock"])
async def test_other_planted_faults(tmp_path: Path, fault: str) -> None:
    plan = replace(plan_kills(20.0), kills=0, fault=fault)
    if fault == "host-clock":
        plan = replace(plan, clock_offsets_s=WRONG_CLOCKS_S)
    report = await run_replicas(find_postgres_url(), tmp_path, plan)
    check_shown(fault, report)
