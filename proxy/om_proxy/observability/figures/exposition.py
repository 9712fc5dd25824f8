"""Render sums as Prometheus reads them: in its text format, or as OpenMetrics.

The pages are byte for byte those of prometheus-client, whose generators take four times as long: they
check each name and each label of each line. The library is imported here, at the first scrape: that
takes 0.1 s and 7 MB.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import lru_cache

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from om_proxy import __version__
from om_proxy.observability.figures import metrics
from om_proxy.observability.figures.fact_counter import MICRODOLLARS_A_DOLLAR
from om_proxy.observability.figures.metrics import METRICS, OPTIONAL_LABELS, Metric
from om_proxy.observability.figures.series import SeriesName, Sums

Rows = list[tuple[dict[str, str], tuple[float, ...]]]

OPENMETRICS_TYPE = "application/openmetrics-text"
MAX_CACHED_LABELS = 20_000
BOUND_LABEL = "le"  # of a bucket
_write_number: Callable[[float], str] = floatToGoString  # the library has no types

DOLLAR_METRICS = (
    metrics.COST_BASELINE,
    metrics.COST_ACTUAL,
    metrics.OBSERVER_COST,
    metrics.REFLECTOR_COST,
    metrics.EMBEDDING_COST,
)


def render_page(sums: Sums, accept: str) -> tuple[bytes, str]:
    """Return the page and its content type, in the format that the header `Accept` asks for."""
    _, content_type = choose_encoder(accept)
    is_openmetrics = content_type.startswith(OPENMETRICS_TYPE)
    rows_by_metric: dict[str, Rows] = {}
    for name, numbers in (*sums.items(), *_add_derived(sums)):
        labels = dict(zip(name[1::2], name[2::2], strict=True))
        rows_by_metric.setdefault(name[0], []).append((labels, numbers))
    lines: list[str] = []
    for metric in METRICS:
        if rows := rows_by_metric.get(metric.name):
            lines += _write_heading(metric, is_openmetrics=is_openmetrics)
            lines += _write_samples(metric, rows)
    if is_openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode(), str(content_type)


def _write_heading(metric: Metric, *, is_openmetrics: bool) -> tuple[str, str]:
    is_bare = is_openmetrics and metric.kind == "counter"
    name = metric.name.removesuffix("_total") if is_bare else metric.name
    text = _escape(metric.help) if is_openmetrics else _escape_backslashes(metric.help)
    return f"# HELP {name} {text}\n", f"# TYPE {name} {metric.kind}\n"


def _write_samples(metric: Metric, rows: Rows) -> Iterator[str]:
    names = _list_label_names(metric, rows)
    scale = MICRODOLLARS_A_DOLLAR if metric in DOLLAR_METRICS else 1
    for values, numbers in rows:
        labels = tuple((name, values.get(name, "")) for name in names)
        if metric.kind == "histogram":
            yield from _write_histogram(metric, labels, numbers)
        else:
            yield f"{metric.name}{_write_labels(labels)} {_write_number(numbers[0] / scale)}\n"


def _write_histogram(metric: Metric, labels: Labels, numbers: tuple[float, ...]) -> Iterator[str]:
    """Yield the buckets, each with the count of all values up to its bound, and the sums."""
    count = 0.0
    bounds = (*map(str, metric.bounds), "+Inf")
    for bound, number in zip(bounds, numbers[:-1], strict=True):
        count += number
        bucket = _write_labels((*labels, (BOUND_LABEL, bound)))
        yield f"{metric.name}_bucket{bucket} {_write_number(count)}\n"
    own = _write_labels(labels)
    yield f"{metric.name}_count{own} {_write_number(count)}\n"
    yield f"{metric.name}_sum{own} {_write_number(numbers[-1])}\n"


Labels = tuple[tuple[str, str], ...]


@lru_cache(MAX_CACHED_LABELS)
def _write_labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(labels)) + "}"


def _escape(text: str) -> str:
    return _escape_backslashes(text).replace('"', r"\"")


def _escape_backslashes(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _list_label_names(metric: Metric, rows: Rows) -> list[str]:
    present = {name for values, _ in rows for name in values}
    return [*metric.labels, *(name for name in OPTIONAL_LABELS if name in present)]


def _add_derived(sums: Sums) -> Iterator[tuple[SeriesName, tuple[float, ...]]]:
    """Yield the gauges that follow from the sums or from the program."""
    signs = dict.fromkeys((metric.name for metric in DOLLAR_METRICS), -1)
    signs[metrics.COST_BASELINE.name] = 1
    # a client that sends less would never have paid for its history (memory/ledger.py)
    saved = [
        signs[name[0]] * numbers[0]
        for name, numbers in sums.items()
        if name[0] in signs and name[4] == "full"
    ]
    if saved:
        yield (metrics.COST_SAVINGS.name,), (sum(saved) / MICRODOLLARS_A_DOLLAR,)
    build = (metrics.BUILD_INFO.name, "version", __version__, "python", platform.python_version())
    yield build, (1.0,)
