"""The benchmarks that `om-proxy eval` plays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from om_proxy.common.errors import UsageError
from om_proxy.proof.evaluation import locomo, longmemeval
from om_proxy.proof.evaluation.cases import Case, Question, Source
from om_proxy.proof.playing import keep_thresholds
from om_proxy.settings.config.effective import merge_levels

# of memory; the rest are the product's defaults
SETTINGS: Mapping[str, Any] = {"scope": "resource", "observation": {"buffer_on_idle": True}}
SHIPPED_PROMPTS = ("default", "condensed")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`choose` returns the names of a sample's questions. `score`, where the benchmark has a measure
    of its own beside the judge, returns it for a reply. `ceiling`: the share that can be right."""

    name: str
    source: Source
    read_cases: Callable[[Path], Iterator[Case]]
    choose: Callable[[Sequence[Question], int | None], Collection[str]]
    score: Callable[[Question, str], float] | None = None
    ceiling: float | None = None
    settings: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)


BENCHMARKS: Mapping[str, Benchmark] = {
    "longmemeval-s": Benchmark(
        "longmemeval-s",
        longmemeval.SOURCE,
        longmemeval.read_cases,
        longmemeval.choose,
    ),
    "locomo": Benchmark(
        "locomo",
        locomo.SOURCE,
        locomo.read_cases,
        locomo.choose,
        locomo.score,
        locomo.CEILING,
    ),
}


def lay_settings(benchmark: Benchmark, memory: object) -> Benchmark:
    """Return the benchmark with these settings of memory over its own, without the models and
    addresses they name. Raise UsageError for what is no mapping, and for a prompt in a file: who
    checks the run lacks it."""
    if not isinstance(memory, Mapping):
        raise UsageError(
            "the settings of memory must be a mapping, as in memory: {scope: resource}"
        )
    kept = keep_thresholds({"memory": memory}).get("memory", {})
    observation = kept.get("observation")
    prompt = observation.get("prompt") if isinstance(observation, Mapping) else None
    if prompt not in (None, *SHIPPED_PROMPTS):
        raise UsageError(
            f"memory.observation.prompt must be {' or '.join(SHIPPED_PROMPTS)}: a prompt of your own"
            " is not in the folder of a run, so nobody could check it; memory.observation.instruction"
            " adds words of yours"
        )
    return replace(benchmark, settings=merge_levels([benchmark.settings, kept]))


def check_data(source: Source, path: Path) -> None:
    """Raise UsageError unless the file is the benchmark's, byte for byte."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be read ({exc.strerror}); {source.name} is had at {source.place}"
        ) from exc
    if found != source.sha256:
        raise UsageError(
            f"{path} has the SHA-256 {found}, and {source.name} of {source.place} has"
            f" {source.sha256}: figures from other data cannot be compared"
        )


def choose_cases(
    benchmark: Benchmark, path: Path, count: int | None, case_count: int | None
) -> list[Case]:
    """Return the cases that have a question of the sample, with these questions alone.
    `case_count`: of the first so many cases only."""
    cases = list(benchmark.read_cases(path))[:case_count]
    questions = [question for case in cases for question in case.questions]
    names = benchmark.choose(questions, count)
    chosen = [
        Case(case.number, case.sessions, [q for q in case.questions if q.name in names])
        for case in cases
    ]
    return [case for case in chosen if case.questions]
