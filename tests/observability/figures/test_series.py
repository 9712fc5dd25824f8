"""Series of several processes add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.observability.figures import metrics
from om_proxy.observability.figures.series import ABSENT, NumberArray, Series, add_up, drop_gauges


def create_series() -> Series:
    return Series(NumberArray())


def test_one_place_for_one_set_of_labels() -> None:
    series = create_series()
    place = series.find(metrics.FAILURES, "observe")
    assert series.find(metrics.FAILURES, "observe") == place
    assert series.find(metrics.FAILURES, "reflect") != place


def test_counters_of_processes_add_up() -> None:
    first, second = create_series(), create_series()
    first.add(metrics.FAILURES, "observe", amount=2)
    second.add(metrics.FAILURES, "observe")
    second.add(metrics.FAILURES, "reflect")
    assert add_up([first.array.copy(), second.array.copy()]) == {
        ("om_failures_total", "cause", "observe"): (3.0,),
        ("om_failures_total", "cause", "reflect"): (1.0,),
    }


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_each_value_in_one_bucket(values: list[float]) -> None:
    """A value that equals a bound belongs to that bound's bucket, as Prometheus has it."""
    series, metric = create_series(), metrics.FIRST_BYTE
    series.find(metric, "here")
    for value in values:
        series.observe(metric, "here", number=value)
    *counts, total = add_up([series.array.copy()])[metric.name, "upstream", "here"]
    assert total == pytest.approx(sum(values))
    for number, bound in enumerate(metric.bounds, 1):
        assert sum(counts[:number]) == sum(value <= bound for value in values)
    assert sum(counts) == len(values)


def test_an_absent_gauge_is_left_out() -> None:
    series = create_series()
    series.set(metrics.WORK_RUNNING, 3)
    series.set(metrics.TURNS_WAITING, 2)
    series.set(metrics.TURNS_WAITING, ABSENT)
    assert add_up([series.array.copy()]) == {("om_work_running",): (3.0,)}


def test_gauges_end_with_their_process() -> None:
    series = create_series()
    series.set(metrics.WORK_RUNNING, 3)
    series.add(metrics.FAILURES, "observe")
    assert list(drop_gauges(add_up([series.array.copy()]))) == [
        ("om_failures_total", "cause", "observe")
    ]


def test_an_unknown_metric_is_left_out() -> None:
    """An array of another version of the program."""
    array = NumberArray()
    array.add_row('["om_of_tomorrow_total"]', 1)
    array.add_row('["om_failures_total", "cause", "observe"]', 9)
    assert add_up([array.copy()]) == {}
