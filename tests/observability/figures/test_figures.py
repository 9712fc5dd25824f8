"""The figures of a process: which names they may tell, and what they do without their folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from om_proxy.agents.models.price_list import _read_table
from om_proxy.memory.ledger import Account
from om_proxy.memory.model import Key
from om_proxy.memory.token_prices import Usage
from om_proxy.observability.facts import Fact, Facts, Observed, TurnPriced
from om_proxy.observability.figures.figures import Figures, ProcessState
from om_proxy.observability.figures.label_values import MAX_MODELS
from om_proxy.settings.config import WatchedSettings, parse
from tests.observability.figures.test_fact_counter import turn

KEY = Key("tenant", "ada", "kitchen")
SETTINGS = """
upstream:
  - {name: own, base_url: "http://h/v1", match: [llama-own, "gpt-*"]}
  - {name: rest, base_url: "http://h/v1"}
models: {mine: {}, "o?": {}, "[ab]": {}}
"""


def count_facts(figures: Figures) -> Callable[[Fact], None]:
    """Return what emits a fact that the figures count."""
    facts = Facts()
    figures.count_facts(facts, str)
    return facts.emit


async def test_a_change_of_the_configuration_names_a_model() -> None:
    watched = WatchedSettings(parse(""))
    figures = Figures(watched)
    count = count_facts(figures)
    count(Observed(KEY, 900, 90, True, "mine"))
    watched.current = parse(SETTINGS)
    count(Observed(KEY, 900, 90, True, "mine"))
    page, _ = await figures.render("")
    assert b'om_observations_created_total{model="other"} 1.0' in page
    assert b'om_observations_created_total{model="mine"} 1.0' in page


async def test_gauges_are_read_at_each_scrape() -> None:
    figures = Figures(WatchedSettings(parse("")))
    figures.watch_gauges(lambda: ProcessState(3, 7, 9))
    page, _ = await figures.render("")
    assert b"om_turns_waiting 3.0" in page
    assert b"om_work_running 7.0" in page
    assert b"om_requests_in_flight 9.0" in page
    figures.watch_gauges(lambda: ProcessState(0, 0, 0))
    page, _ = await figures.render("")
    assert b"om_turns_waiting 0.0" in page


async def test_workers_answer_for_each_other(tmp_path: Path) -> None:
    watched = WatchedSettings(parse(""))
    first, second = Figures(watched, tmp_path), Figures(watched, tmp_path)
    count_facts(first)(Observed(KEY, 900, 90, True, "gpt-4o"))
    count_facts(second)(Observed(KEY, 900, 90, True, "gpt-4o"))
    for figures in (first, second):
        page, _ = await figures.render("")
        assert b'om_observations_created_total{model="gpt-4o"} 2.0' in page
    first.close()
    page, _ = await second.render("")
    assert b'om_observations_created_total{model="gpt-4o"} 2.0' in page


async def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """The worker counts for itself, and the log says so."""
    with capture_logs() as logs:
        figures = Figures(WatchedSettings(parse("")), tmp_path / "gone")
    assert [line["event"] for line in logs] == ["figures.alone"]
    count_facts(figures)(Observed(KEY, 900, 90, True, "gpt-4o"))
    page, _ = await figures.render("")
    assert b'om_observations_created_total{model="gpt-4o"} 1.0' in page


@pytest.mark.parametrize("library", ["prometheus_client", "opentelemetry"])
def test_a_start_imports_no_library_for_it(library: str) -> None:
    """It is imported at the first scrape."""
    code = f"import sys, om_proxy.app.app; sys.exit('{library}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_page_of_200_models_stays_small() -> None:
    """However many models clients name."""
    figures = Figures(WatchedSettings(parse("")))
    count = count_facts(figures)
    listed = [name for name in _read_table() if "/" not in name]
    assert len(listed) > 300
    for name in listed:
        count(turn(model=name, usage=Usage(5, 3, 0, 2)))
        count(TurnPriced(KEY, name, "full", Account(cost=300, baseline_cost=500)))
        count(Observed(KEY, 900, 90, True, "gpt-4o"))
    page, _ = await figures.render("")
    assert page.count(b'om_prompt_tokens_total{kind="sent"') == MAX_MODELS + 1
    assert b'om_prompt_tokens_total{kind="sent",model="other"}' in page
    assert len(page) <= 150_000
