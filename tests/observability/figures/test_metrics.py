"""The table of metrics, and what else speaks of them: the dashboard, the rules and the guide."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from om_proxy.common.reasons import Status
from om_proxy.observability.figures.metrics import (
    FAILURE_CAUSES,
    LABEL_VALUES,
    METRICS,
    METRICS_BY_NAME,
    OPTIONAL_LABELS,
)

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "examples" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboard.json").read_text(encoding="utf-8"))
ALERTS: dict[str, Any] = yaml.safe_load((GRAFANA / "alerts.yaml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
GUIDE = (ROOT / "docs" / "guides" / "metrics.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


def list_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for rule in RULES:
        yield rule["expr"]


def list_samples() -> set[str]:
    """The names that a page has: a histogram has three."""
    return {
        f"{metric.name}{ending}"
        for metric in METRICS
        for ending in (("_bucket", "_sum", "_count") if metric.bounds else ("",))
    }


def test_names_are_distinct_and_say_their_unit() -> None:
    """A counter ends with `_total`; the one gauge that does so is told as such."""
    assert len(METRICS_BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"om(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") is (
            metric.kind == "counter" or metric.name == "om_cost_savings_total"
        )
        assert bool(metric.bounds) is (metric.kind == "histogram")
        assert metric.bounds == tuple(sorted(set(metric.bounds)))
        assert not metric.names_thread or metric.kind == "counter"


def test_every_label_is_explained() -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels == set(LABEL_VALUES)
    assert not labels & set(OPTIONAL_LABELS)


@pytest.mark.parametrize("expression", sorted(set(list_expressions())))
def test_dashboard_and_rules_name_what_there_is(expression: str) -> None:
    """Names, labels and label values; and parentheses close."""
    names = re.findall(r"\bom[_:][\w:]+", expression)
    assert names
    assert set(names) <= list_samples() | RECORDED
    asked = re.findall(r"(om_\w+)\{([^}]*)\}", expression)
    for name, selector in asked:
        metric = METRICS_BY_NAME[re.sub(r"_(bucket|sum|count)$", "", name)]
        for label, value in re.findall(r'(\w+)!?="([^"]*)"', selector):
            assert label in metric.labels
            if label == "status":
                assert value in set(Status)
            elif label == "cause":
                assert value in FAILURE_CAUSES
            elif value != "complete":
                assert f"`{value}`" in LABEL_VALUES[label]
    known = {label for metric in METRICS for label in metric.labels} | {"le"}
    for grouping in re.findall(r"by \(([^)]*)\)", expression):
        assert set(re.split(r",\s*", grouping)) <= known
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_no_rate_is_taken_of_a_gauge() -> None:
    """Savings may fall: a rate of them explodes at each fall."""
    gauges = {metric.name for metric in METRICS if metric.kind == "gauge"}
    for expression in list_expressions():
        rated = re.findall(r"(?:rate|increase)\((om_\w+)", expression)
        assert not gauges & set(rated)


def test_every_alert_says_what_to_do() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len(alerts) >= 4
    for rule in alerts:
        assert set(rule["annotations"]) == {"summary", "action"}
        assert f"`{rule['alert']}`" in GUIDE


def test_the_rule_for_savings_is_the_pages() -> None:
    (rule,) = [rule for rule in RULES if "record" in rule]
    written = " ".join(re.findall(r"expr: >-\n(.*?)```", PAGE, flags=re.S)[0].split())
    assert written == " ".join(rule["expr"].split())


def test_the_dashboard_can_be_imported() -> None:
    """Each panel has a place and a data source that the reader chooses."""
    assert [item["name"] for item in DASHBOARD["templating"]["list"]] == ["datasource"]
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
