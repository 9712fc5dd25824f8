"""Whether something grows: samples over a number of requests, and the line through those after the
warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression

WARM_UP = 0.3  # of the samples: caches fill
BOUND = 1.0  # MiB of resident memory per 10⁵ requests
SPARE = {
    "descriptors": 10,
    "threads": 2,
}  # more than in the warm-up: connections to the model server come and go


@dataclass(frozen=True, slots=True)
class Sample:
    requests: int
    resident: float  # MiB
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Line:
    slope: float  # per 10⁵ requests
    error: float  # its standard error


def drop_warm_up(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Drop the samples of the warm-up."""
    return samples[int(WARM_UP * len(samples)) :]


def fit_line(samples: Sequence[Sample]) -> Line:
    """Fit a line through the resident memory of at least three samples."""
    x, y = [s.requests / 1e5 for s in samples], [s.resident for s in samples]
    slope, intercept = linear_regression(x, y)
    rest = sum((b - slope * a - intercept) ** 2 for a, b in zip(x, y, strict=True)) / (len(x) - 2)
    mean = sum(x) / len(x)
    return Line(slope, float((rest / sum((a - mean) ** 2 for a in x)) ** 0.5))


def find_growth(samples: Sequence[Sample]) -> list[str]:
    """List what grew beyond its bound, in words."""
    late = drop_warm_up(samples)
    early = samples[: len(samples) - len(late)]
    line = fit_line(late)
    found = (
        [f"resident memory grows by {line.slope:.2f} MiB per 10⁵ requests"]
        if line.slope > BOUND
        else []
    )
    for what, spare in SPARE.items():
        before, after = (max(getattr(s, what) for s in some) for some in (early, late))
        if after > before + spare:
            found.append(f"{what} grew from {before} to {after}")
    return found
