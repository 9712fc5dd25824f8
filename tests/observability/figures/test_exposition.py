"""The page as Prometheus reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from om_proxy.observability.figures import metrics
from om_proxy.observability.figures.exposition import DOLLAR_METRICS, render_page
from om_proxy.observability.figures.metrics import METRICS
from om_proxy.observability.figures.series import NumberArray, Series, Sums, add_up

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def fill_every_metric(value: str = "x") -> Sums:
    """One series of each metric, with the number 2."""
    series = Series(NumberArray())
    for metric in METRICS:
        values = tuple(value for _ in metric.labels)
        if metric.bounds:
            series.observe(metric, *values, number=metric.bounds[0])
            series.observe(metric, *values, number=10 * metric.bounds[-1])
        else:
            series.add(metric, *values, amount=2)
    return add_up([series.array.copy()])


def read_samples(page: bytes, *, openmetrics: bool = False) -> dict[tuple[str, ...], float]:
    parse = parse_openmetrics if openmetrics else parse_text
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in parse(page.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("accept", ["", "text/plain", OPENMETRICS])
def test_both_formats_hold_every_metric(accept: str) -> None:
    """Each is parsed by the library's own parser, and has the types of the table."""
    page, content_type = render_page(fill_every_metric(), accept)
    assert content_type.startswith(accept.partition(";")[0] or "text/plain")
    parse = parse_openmetrics if accept == OPENMETRICS else parse_text
    kinds = {family.name: family.type for family in parse(page.decode())}
    assert kinds == {
        metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name: metric.kind
        for metric in METRICS
    }


class Families:
    """What prometheus-client is given to write the same page."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums

    def collect(self) -> Iterator[Any]:
        for metric in METRICS:
            rows = [(name, n) for name, n in self._sums.items() if name[0] == metric.name]
            build = KINDS[metric.kind]
            names = sorted({label for name, _ in rows for label in name[1::2]})
            family = build(metric.name, metric.help, labels=names)
            for name, numbers in rows:
                labels = dict(zip(name[1::2], name[2::2], strict=True))
                values = [labels.get(label, "") for label in names]
                if metric.kind == "histogram":
                    counts = list(itertools.accumulate(numbers[:-1]))
                    bounds = (*map(str, metric.bounds), "+Inf")
                    family.add_metric(values, list(zip(bounds, counts, strict=True)), numbers[-1])
                else:
                    family.add_metric(values, numbers[0])
            if rows:
                yield family


KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
OWN_METRICS = (metrics.COST_SAVINGS.name, metrics.BUILD_INFO.name)  # follow from the sums
COSTS = tuple(metric.name for metric in DOLLAR_METRICS)


@pytest.mark.parametrize("accept", ["", "text/plain", OPENMETRICS])
@pytest.mark.parametrize("value", ["x", 'a"b\\c\nd é', ""])
def test_a_page_is_byte_for_byte_that_of_the_library(accept: str, value: str) -> None:
    """Whatever stands in a label, and however large a number is."""
    sums = fill_every_metric(value) | {
        (metrics.TURNS_WAITING.name,): (12_345_678.5,),
        ("om_requests_total", "status", "s", "reason", value, "upstream", "u"): (1e21,),
        ("om_requests_total", "status", "s", "reason", value, "upstream", "u", "thread", "t"): (
            0.1,
        ),
    }
    sums = {name: n for name, n in sums.items() if name[0] not in (*OWN_METRICS, *COSTS)}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(sums))
    encode, content_type = choose_encoder(accept)
    page, own_type = render_page(sums, accept)
    lines = page.splitlines(keepends=True)
    own = b"".join(line for line in lines if metrics.BUILD_INFO.name.encode() not in line)
    assert (own, own_type) == (encode(registry), content_type)


def test_buckets_are_cumulative() -> None:
    series = Series(NumberArray())
    for value in (0.01, 0.12, 0.13, 7.0):
        series.observe(metrics.COMPRESSION_RATIO, "observation", number=value)
    samples = read_samples(render_page(add_up([series.array.copy()]), "")[0])
    bucket = "om_compression_ratio_bucket"
    assert samples[bucket, "kind=observation", "le=0.01"] == 1
    assert samples[bucket, "kind=observation", "le=0.1"] == 1
    assert samples[bucket, "kind=observation", "le=0.15"] == 3
    assert samples[bucket, "kind=observation", "le=1.0"] == 3
    assert samples[bucket, "kind=observation", "le=+Inf"] == 4
    assert samples["om_compression_ratio_count", "kind=observation"] == 4
    assert samples["om_compression_ratio_sum", "kind=observation"] == pytest.approx(7.26)


def test_costs_are_dollars_and_savings_follow() -> None:
    """Savings are the baseline less everything paid, and may be negative. Clients that send only a
    part of their history do not count."""
    series = Series(NumberArray())
    for metric, model, history, microdollars in (
        (metrics.COST_BASELINE, "a", "full", 500_000),
        (metrics.COST_BASELINE, "b", "full", 250_000),
        (metrics.COST_ACTUAL, "a", "full", 300_000),
        (metrics.OBSERVER_COST, "o", "full", 600_001),
        (metrics.REFLECTOR_COST, "o", "full", 50_000),
        (metrics.OBSERVER_COST, "o", "partial", 900_000),
    ):
        series.add(metric, model, history, amount=microdollars)
    samples = read_samples(render_page(add_up([series.array.copy()]), "")[0])
    assert samples["om_cost_baseline_total", "history=full", "model=a"] == 0.5
    assert samples["om_observer_cost_total", "history=full", "model=o"] == 0.600001
    assert samples[("om_cost_savings_total",)] == pytest.approx(-0.200001)


def test_no_prices_no_savings() -> None:
    assert b"om_cost" not in render_page({}, "")[0]


def test_labels_that_some_series_lack_are_empty() -> None:
    """A call for several threads names none."""
    series = Series(NumberArray())
    series.add(metrics.OBSERVATIONS_CREATED, "m", more=("thread", "1f"))
    series.add(metrics.OBSERVATIONS_CREATED, "m")
    samples = read_samples(render_page(add_up([series.array.copy()]), "")[0])
    name = "om_observations_created_total"
    assert samples[name, "model=m", "thread=1f"] == samples[name, "model=m", "thread="] == 1


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb", '"} 1\nevil_total 1', "ключ", "\x00"])
def test_label_values_are_escaped(value: str) -> None:
    """An upstream's name comes from the configuration, and may be anything."""
    page, _ = render_page(fill_every_metric(value), "")
    samples = read_samples(page)
    assert {name[0].partition("_")[0] for name in samples} == {"om"}
    assert samples["om_failures_total", f"cause={value}"] == 2
