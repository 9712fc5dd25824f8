"""A run of a benchmark: what it is made of, what it will take, and playing it. Its folder holds what
was asked for, the log of calls, the cases that are done, and the report."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from om_proxy import __version__
from om_proxy.agents.models import Price, create_encoder
from om_proxy.common.errors import Conflict, NotFound, UsageError
from om_proxy.proof.evaluation.benchmarks import (
    Benchmark,
    Case,
    Session,
    check_data,
    choose_cases,
    lay_settings,
)
from om_proxy.proof.evaluation.call_log import CallLog, LoggedModels
from om_proxy.proof.evaluation.case_player import (
    PLANTED_QUESTIONS,
    SYSTEMS,
    CasePlayer,
    read_prompts,
    write_prompt,
)
from om_proxy.proof.evaluation.locomo import LOCOMO
from om_proxy.proof.evaluation.longmemeval import LONGMEMEVAL
from om_proxy.proof.evaluation.models import Model, parse_model
from om_proxy.proof.evaluation.report import build_report, render_page

# in the order of `om-proxy eval data`
BENCHMARKS: Mapping[str, Benchmark] = {one.name: one for one in (LONGMEMEVAL, LOCOMO)}
STEPS = ("actor", "memory", "judge")
PLAYED_PREFIX = "played"  # begins the name of a model that a person or another program plays
RUN_FILE, CASES_FILE = "run.json", "cases.jsonl"
REPORT_FILE, REPORT_PAGE = "report.json", "report.md"
# tokens; measured in November 2026, and rounded up
TOKENS_OF_A_NOTE_PROMPT = 4_000  # guidance and earlier notes, in each call for notes
SOURCE_TOKENS_OF_A_NOTE_TOKEN = 2.8
REPLY_TOKENS = 100
JUDGE_INPUT_TOKENS, JUDGE_OUTPUT_TOKENS = 300, 5
PLANTED_REPLIES = 3  # to each planted question

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

    def parse_models(self) -> dict[str, Model]:
        return {step: parse_model(self.models[step], self.prices[step]) for step in STEPS}

    def choose_cases(self) -> list[Case]:
        return choose_cases(self.benchmark, self.data, self.sample, self.case_count)


def describe_run(plan: RunPlan) -> dict[str, Any]:
    """Return what `run.json` says."""
    questions = sum(len(case.questions) for case in plan.choose_cases())
    everything = choose_cases(plan.benchmark, plan.data, None, None)
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
        "prices": {step: dump_price(model.price) for step, model in plan.parse_models().items()},
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
    asked = LoggedModels(CallLog(folder.path), plan.parse_models(), budget)
    done = {row.get("case") for row in folder.read_cases()}
    player, cases = create_player(plan, asked), plan.choose_cases()
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


def create_player(plan: RunPlan, asked: LoggedModels) -> CasePlayer:
    models = plan.parse_models()
    actor, judge = models["actor"].name, models["judge"].name
    return CasePlayer(plan.benchmark, asked, actor, judge, plan.systems)


def dump_price(price: Price | None) -> dict[str, float] | None:
    return asdict(price) if price else None


def read_price(price: Mapping[str, float] | None) -> Price | None:
    return Price(**price) if price else None


# ── before any model is asked ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """The calls of one step. `dollars` is None if the model's price is not known."""

    step: str
    calls: int
    input_tokens: int
    output_tokens: int
    dollars: float | None


def estimate_run(
    cases: Sequence[Case], systems: Sequence[str], prices: Mapping[str, Price | None]
) -> list[StepEstimate]:
    """Return the calls of each step. Notes take one call for each session."""
    count = create_encoder("")
    found: list[StepEstimate] = []

    def add(step: str, sizes: Sequence[int], output_tokens: int) -> None:
        price = prices[step.partition(":")[0]]
        read = sum(sizes)
        dollars = read * price.input + output_tokens * price.output if price else None
        found.append(StepEstimate(step, len(sizes), read, output_tokens, dollars))

    questions = sum(len(case.questions) for case in cases)
    sizes = {case.number: [_count(session, count) for session in case.sessions] for case in cases}
    for system in systems:
        if system == "om":
            source = [size for case in cases for size in sizes[case.number]]
            notes = round(sum(source) / SOURCE_TOKENS_OF_A_NOTE_TOKEN)
            add("memory", [TOKENS_OF_A_NOTE_PROMPT + size for size in source], notes)
            logs = [
                round(sum(sizes[case.number]) / SOURCE_TOKENS_OF_A_NOTE_TOKEN)
                for case in cases
                for _ in case.questions
            ]
            add("actor:om", logs, questions * REPLY_TOKENS)
        else:
            prompts = [
                count(write_prompt(system, case.sessions, question))
                for case in cases
                for question in case.questions
            ]
            add(f"actor:{system}", prompts, questions * REPLY_TOKENS)
    verdicts = questions * len(systems) + PLANTED_QUESTIONS * PLANTED_REPLIES
    add("judge", [JUDGE_INPUT_TOKENS] * verdicts, verdicts * JUDGE_OUTPUT_TOKENS)
    return found


def render_rows(steps: Sequence[StepEstimate]) -> Iterator[tuple[str, ...]]:
    for step in steps:
        dollars = "price not known" if step.dollars is None else f"{step.dollars:.2f}"
        numbers = (step.calls, step.input_tokens, step.output_tokens)
        yield step.step, *map(str, numbers), dollars


def _count(session: Session, count: Callable[[str], int]) -> int:
    return sum(count(message["content"]) for message in session.messages)


# ── the folder ────────────────────────────────────────────────────────────────────────────────────


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, run: Mapping[str, Any]) -> None:
        """Begin a run. Raises Conflict if the folder has anything in it."""
        if self.path.exists() and any(self.path.iterdir()):
            raise Conflict(
                f"{self.path} is not empty: `om-proxy eval resume {self.path}` goes on with a run"
            )
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self.path / RUN_FILE, dump(run))

    def read_run(self) -> dict[str, Any]:
        """Read what was asked for. Raises UsageError for a folder with links: it may come from
        others, and what is written in it would change files elsewhere."""
        if self.path.is_dir() and any(path.is_symlink() for path in self.path.iterdir()):
            raise UsageError(f"{self.path} holds links, and the folder of a run has none")
        try:
            run: dict[str, Any] = orjson.loads((self.path / RUN_FILE).read_bytes())
        except FileNotFoundError as exc:
            raise NotFound(f"{self.path} holds no run: there is no {RUN_FILE}") from exc
        except ValueError as exc:
            raise UsageError(f"{self.path / RUN_FILE} is damaged: {exc}") from exc
        return run

    def append_case(self, row: Mapping[str, Any]) -> None:
        with (self.path / CASES_FILE).open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read_cases(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that are whole; a killed run may have left a part of its last one."""
        path = self.path / CASES_FILE
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if line.endswith(b"\n"):
                yield orjson.loads(line)

    def cut_torn_case(self) -> None:
        path = self.path / CASES_FILE
        if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
            write_whole(path, data[: data.rfind(b"\n") + 1])

    def write_report(self, report: Mapping[str, Any], page: str) -> None:
        if unknown := set(report["systems"]).difference(SYSTEMS):
            raise UsageError(
                f"{CASES_FILE} names system {min(unknown)!r}: there are {', '.join(SYSTEMS)}"
            )
        for system in report["systems"]:
            hypotheses = self._read_hypotheses(system)
            write_whole(self.path / f"hypotheses-{system}.jsonl", b"".join(hypotheses))
        write_whole(self.path / REPORT_PAGE, page.encode())
        write_whole(self.path / REPORT_FILE, dump(report))

    def read_report(self) -> dict[str, Any]:
        try:
            report: dict[str, Any] = orjson.loads((self.path / REPORT_FILE).read_bytes())
        except (FileNotFoundError, ValueError) as exc:
            raise NotFound(
                f"{self.path} has no {REPORT_FILE}: `om-proxy eval resume {self.path}` ends the run"
            ) from exc
        return report

    def _read_hypotheses(self, system: str) -> Iterable[bytes]:
        """Yield lines in the form that LongMemEval's own script reads."""
        for row in self.read_cases():
            for answer in row.get("answers", ()):
                if answer["system"] == system:
                    line = {"question_id": answer["question"], "hypothesis": answer["hypothesis"]}
                    yield orjson.dumps(line) + b"\n"


def dump(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that nobody sees half of."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    os.replace(part, path)
