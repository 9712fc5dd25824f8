"""A run of a benchmark: what it is made of, playing it, and playing it again from its log alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from om_proxy import __version__
from om_proxy.agents.models import Price
from om_proxy.common.errors import UsageError
from om_proxy.proof.evaluation.benchmarks import (
    BENCHMARKS,
    Benchmark,
    check_data,
    choose_cases,
    lay_settings,
)
from om_proxy.proof.evaluation.call_log import CallLog
from om_proxy.proof.evaluation.case_player import CasePlayer
from om_proxy.proof.evaluation.cases import Case
from om_proxy.proof.evaluation.logged_models import CallMissing, LoggedModels
from om_proxy.proof.evaluation.models import Model, parse_model
from om_proxy.proof.evaluation.prompts import read_prompts
from om_proxy.proof.evaluation.report import build_report
from om_proxy.proof.evaluation.report_page import render_page
from om_proxy.proof.evaluation.run_folder import RunFolder

STEPS = ("actor", "memory", "judge")
PLAYED_PREFIX = "played"  # begins the name of a model that a person or another program plays

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run is made of. `models` by step; `prices` in place of the price list's."""

    benchmark: Benchmark
    data: Path
    sample: int | None  # questions; None is all
    case_count: int | None
    systems: Sequence[str]
    models: Mapping[str, str]
    prices: Mapping[str, Price | None]

    def choose_cases(self) -> list[Case]:
        return choose_cases(self.benchmark, self.data, self.sample, self.case_count)


def describe_run(plan: RunPlan) -> dict[str, Any]:
    """Return what `run.json` says."""
    questions = sum(len(case.questions) for case in plan.choose_cases())
    everything = choose_cases(plan.benchmark, plan.data, None, None)
    models = {step: parse_model(plan.models[step], plan.prices.get(step)) for step in STEPS}
    return {
        "version": __version__,
        "benchmark": plan.benchmark.name,
        "data": str(plan.data),
        "data_sha256": plan.benchmark.source.sha256,
        "sample": plan.sample,
        "case_count": plan.case_count,
        "questions": questions,
        "all_questions": sum(len(case.questions) for case in everything),
        "systems": list(plan.systems),
        "models": dict(plan.models),
        "prices": {step: dump_price(model.price) for step, model in models.items()},
        "settings": orjson.dumps(plan.benchmark.settings).decode(),
        "ceiling": plan.benchmark.ceiling,
        "is_played": any(spec.startswith(PLAYED_PREFIX) for spec in plan.models.values()),
        "prompts_sha256": hashlib.sha256(orjson.dumps(read_prompts())).hexdigest(),
    }


def read_plan(run: Row, data: Path | None = None, benchmark: Benchmark | None = None) -> RunPlan:
    """Read `run.json` back. `data`: where the file stands now. Raise UsageError for settings that
    no run has: the folder may come from others."""
    try:
        settings = orjson.loads(run["settings"])
    except ValueError as exc:
        raise UsageError(f"the settings of the run are damaged: {exc}") from exc
    return RunPlan(
        lay_settings(benchmark or BENCHMARKS[run["benchmark"]], settings),
        data or Path(run["data"]),
        run["sample"],
        run["case_count"],
        run["systems"],
        run["models"],
        {step: read_price(price) for step, price in run["prices"].items()},
    )


async def play_run(
    folder: RunFolder,
    plan: RunPlan,
    budget: float | None,
    show: Callable[[str], object],
) -> dict[str, Any]:
    """Play what a run lacks, and write its report. Calls that the log holds are not made again.

    Raises BudgetReached and what models raise; a later call of this function goes on."""
    check_data(plan.benchmark.source, plan.data)
    folder.cut_torn_case()
    models = {step: parse_model(plan.models[step], plan.prices[step]) for step in STEPS}
    asked = LoggedModels(CallLog(folder.path), models, budget)
    done = {row.get("case") for row in folder.read_cases()}
    player, cases = create_player(plan, asked, models), plan.choose_cases()
    for place, case in enumerate(cases, 1):
        if case.number not in done:
            folder.append_case(await player.play(case))
        show(f"case {place} of {len(cases)}, ${asked.spent:.2f} spent")
    if None not in done:
        questions = [question for case in cases for question in case.questions]
        folder.append_case(await player.judge_planted(questions))
    report = build_report(folder.read_run(), list(folder.read_cases()), CallLog(folder.path))
    folder.write_report(report, render_page(report))
    return report


async def play_again(folder: RunFolder, plan: RunPlan) -> str | None:
    """Play a run with its log as the only model, and return the first difference: a prompt that the
    log does not have, or another row. None: every prompt was made again, byte for byte."""
    check_data(plan.benchmark.source, plan.data)
    models = {step: parse_model(plan.models[step], plan.prices[step]) for step in STEPS}
    asked = LoggedModels(CallLog(folder.path), {})
    player, cases = create_player(plan, asked, models), plan.choose_cases()
    told = list(folder.read_cases())
    if len(told) != len(cases) + 1:
        return f"cases.jsonl has {len(told)} lines, and the run has {len(cases) + 1}"
    questions = [question for case in cases for question in case.questions]
    try:
        made = [await player.play(case) for case in cases]
        made.append(await player.judge_planted(questions))
    except CallMissing as exc:
        return str(exc)
    for number, (row, again) in enumerate(zip(told, made, strict=True), 1):
        if dump_row(row) != dump_row(again):
            return f"cases.jsonl, line {number}, is not what the log gives"
    return None


def create_player(plan: RunPlan, asked: LoggedModels, models: Mapping[str, Model]) -> CasePlayer:
    return CasePlayer(
        plan.benchmark,
        asked,
        models["actor"].name,
        models["judge"].name,
        plan.systems,
    )


def dump_row(row: Row) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_SORT_KEYS)


def dump_price(price: Price | None) -> dict[str, float] | None:
    return asdict(price) if price else None


def read_price(price: Mapping[str, float] | None) -> Price | None:
    return Price(**price) if price else None
