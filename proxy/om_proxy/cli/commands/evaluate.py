"""`om-proxy eval`: play public benchmarks through the proxy, and check a run by its folder."""

from __future__ import annotations

import argparse
import asyncio

from om_proxy.agents.models import Price
from om_proxy.cli.answers import (
    confirm,
    escape_line,
    print_json,
    print_table,
    print_text,
    require_yes_or_terminal,
)
from om_proxy.cli.commands.replay import read_rules
from om_proxy.cli.exit_status import BUDGET_REACHED, DECLINED, DONE, NOT_WORKING
from om_proxy.cli.store_command import print_error
from om_proxy.common.errors import OmError, UsageError
from om_proxy.observability import logs
from om_proxy.proof.evaluation.benchmarks import check_data, lay_settings
from om_proxy.proof.evaluation.call_log import BudgetReached, CallLog, sum_dollars
from om_proxy.proof.evaluation.case_player import SYSTEMS
from om_proxy.proof.evaluation.report import build_report, render_page
from om_proxy.proof.evaluation.run import (
    BENCHMARKS,
    STEPS,
    RunFolder,
    RunPlan,
    describe_run,
    estimate_run,
    play_run,
    read_plan,
    render_rows,
)
from om_proxy.proof.evaluation.verify import find_fault, play_again

SOURCE_COLUMNS = ("benchmark", "file", "where", "bytes", "SHA-256", "licence")
COLUMNS = ("step", "calls", "tokens read", "tokens written", "dollars")


def print_sources(options: argparse.Namespace) -> int:
    """Say where each benchmark's file is had."""
    rows = [
        (benchmark.name, s.name, s.place, str(s.size), s.sha256, s.licence)
        for benchmark in BENCHMARKS.values()
        for s in (benchmark.source,)
    ]
    print_table(SOURCE_COLUMNS, rows, as_json=options.json)
    return DONE


def plan(options: argparse.Namespace) -> int:
    """Print what a run would take. No model is asked."""
    print_plan(read_options(options), as_json=options.json)
    return DONE


def run(options: argparse.Namespace) -> int:
    """Begin a run, after asking."""
    require_yes_or_terminal(options)
    chosen = read_options(options)
    print_plan(chosen)
    if not options.yes and not confirm("Ask the models?"):
        return DECLINED
    folder = RunFolder(options.out)
    folder.create(describe_run(chosen))
    return go_on(folder, chosen, options.budget)


def resume(options: argparse.Namespace) -> int:
    """Go on with a run, after asking: an address that its folder names gets the user's key. Calls
    that its log holds are not made again."""
    require_yes_or_terminal(options)
    folder = RunFolder(options.run_folder)
    chosen = read_plan(folder.read_run(), options.data)
    for step, model in chosen.models.items():
        print(escape_line(f"{step}: {model}"))
    if not options.yes and not confirm("Ask these models, with your keys?"):
        return DECLINED
    return go_on(folder, chosen, options.budget)


def go_on(folder: RunFolder, chosen: RunPlan, budget: float | None) -> int:
    logs.configure_log("off")
    try:
        asyncio.run(play_run(folder, chosen, budget, print_error))
    except BudgetReached as exc:
        print_error(str(exc))
        return BUDGET_REACHED
    except OSError as exc:  # of the folder; that of the log comes as an error of its own
        raise OmError(
            f"{folder.path} cannot be written ({exc.strerror}): make room, then"
            f" `om-proxy eval resume {folder.path}`"
        ) from exc
    return print_report(folder)


def report(options: argparse.Namespace) -> int:
    """Compute the report again from the folder, and print it."""
    folder = RunFolder(options.run_folder)
    found = build_report(folder.read_run(), list(folder.read_cases()), CallLog(folder.path))
    folder.write_report(found, render_page(found))
    if options.json:
        print_json(folder.read_report())
        return DONE
    return print_report(folder)


def verify(options: argparse.Namespace) -> int:
    """Compute every number again; with --data, make every prompt again."""
    folder = RunFolder(options.run_folder)
    fault = find_fault(folder)
    if fault is None and options.data:
        logs.configure_log("off")
        chosen = read_plan(folder.read_run(), options.data)
        fault = asyncio.run(play_again(folder, chosen))
    if fault:
        print_error(escape_line(fault))
        return NOT_WORKING
    made = "and every prompt was made again" if options.data else "prompts need --data"
    print(f"every number is what the log gives; {made}")
    return DONE


def read_options(options: argparse.Namespace) -> RunPlan:
    rules = read_rules(options.settings) or {}
    benchmark = lay_settings(BENCHMARKS[options.benchmark], rules.get("memory", {}))
    check_data(benchmark.source, options.data)
    systems = options.systems.split(",")
    if unknown := [name for name in systems if name not in SYSTEMS]:
        raise UsageError(f"--systems {unknown[0]}: there are {', '.join(SYSTEMS)}")
    models = dict(zip(STEPS, (options.actor, options.memory_model, options.judge), strict=True))
    prices = dict(map(read_price, options.price))
    if unknown := [step for step in prices if step not in STEPS]:
        raise UsageError(f"--price {unknown[0]}: the steps are {', '.join(STEPS)}")
    return RunPlan(
        benchmark,
        options.data.resolve(),
        options.sample,
        options.cases,
        systems,
        models,
        {step: prices.get(step) for step in STEPS},
    )


def read_price(text: str) -> tuple[str, Price]:
    """Read `STEP=IN,OUT`, dollars of a million tokens."""
    step, _, amounts = text.partition("=")
    try:
        read, written = (float(amount) / 1e6 for amount in amounts.split(","))
    except ValueError:
        raise UsageError(
            f"--price {text}: write actor=0.30,2.50, dollars of a million tokens"
        ) from None
    return step, Price(read, written, read, read)


def print_plan(chosen: RunPlan, *, as_json: bool = False) -> None:
    prices = {step: model.price for step, model in chosen.parse_models().items()}
    steps = estimate_run(chosen.choose_cases(), chosen.systems, prices)
    if as_json:
        print_json(steps)
        return
    print_table(COLUMNS, render_rows(steps))
    dollars = sum_dollars(step.dollars for step in steps)
    print("dollars: unknown, use --price" if dollars is None else f"dollars: {dollars:.2f}")


def print_report(folder: RunFolder) -> int:
    print_text((folder.path / "report.md").read_text(encoding="utf-8"))
    return DONE
