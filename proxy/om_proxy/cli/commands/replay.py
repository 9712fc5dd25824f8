"""`om-proxy replay`: play recorded conversations through the real proxy, and print what memory would
have cost and saved. Nothing leaves the machine, unless a model is named that makes the notes."""

from __future__ import annotations

import argparse
import contextlib
import heapq
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from om_proxy.agents.models import Price
from om_proxy.cli.answers import (
    confirm,
    escape_line,
    print_json,
    print_table,
    render_count,
    render_number,
    render_time,
    require_yes_or_terminal,
)
from om_proxy.cli.exit_status import BUDGET_REACHED, DECLINED, DONE
from om_proxy.common.errors import NotFound, OmError, UsageError
from om_proxy.observability import logs
from om_proxy.proof.conversation import Conversation
from om_proxy.proof.evaluation.call_log import BudgetReached
from om_proxy.proof.evaluation.models import Model, parse_model
from om_proxy.proof.model_replay import ModelPlan, plan_model_replay, replay_with_model
from om_proxy.proof.playing import Subject, list_main_calls
from om_proxy.proof.readers.records import read_head
from om_proxy.proof.readers.registry import READERS, find_reader, list_names, read_history
from om_proxy.proof.replay import Result, examine, replay
from om_proxy.proof.replay_table import ReplayAnswer, describe_result, render_results
from om_proxy.settings.config import load
from om_proxy.settings.config.loading import read_file

MILLION = 1e6
LISTED_COLUMNS = ("conversation", "program", "last message", "calls", "file")
PRICE_KEYS = frozenset(("in", "out", "cached", "write"))
MAX_SHORT_ID_CHARS = 40


def run(options: argparse.Namespace) -> int:
    """Print one table of the largest conversations."""
    logs.configure_log("off")
    chosen = options.actor, read_price(options.price), read_rules(options.settings)
    model = read_model(options)
    skipped: list[str] = []
    with spool_stdin(options.path) as paths:
        found = list_conversations(paths, options.source, skipped)
        recent = (pair for pair in found if is_recent(pair[1], options.since))
        if options.list:
            print_list(recent, options)
            print_skipped(skipped)
            return DONE
        largest = heapq.nlargest(options.top, enumerate(recent), key=rank)
        examined = [(path, examine(conversation, *chosen)) for _, (path, conversation) in largest]
    subjects = [(path, subject) for path, subject in examined if subject]
    print_skipped(skipped)
    if not subjects:
        raise NotFound("no conversation with a reply was found; look for files with --list")
    try:
        results = play_subjects(subjects, model, options)
    except BudgetReached as exc:
        print(f"om-proxy: {exc}", file=sys.stderr)
        return BUDGET_REACHED
    if results is None:
        return DECLINED
    return print_results(results, skipped, options)


def print_results(
    results: Sequence[Result], skipped: Sequence[str], options: argparse.Namespace
) -> int:
    if options.json:
        has_titles = not options.no_titles
        described = [describe_result(result, has_titles=has_titles) for result in results]
        print_json(ReplayAnswer(described, list(skipped)))
        return DONE
    conversations = (result.subject.conversation for result in results)
    names = {one.id: name_conversation(one, options) for one in conversations}
    for line in render_results(results, names):
        print(line)
    return DONE


def print_skipped(skipped: Iterable[str]) -> None:
    for line in skipped:
        print(f"om-proxy replay: skipped {escape_line(line)}", file=sys.stderr)


# ── with a model ──────────────────────────────────────────────────────────────────────────────────


def read_model(options: argparse.Namespace) -> Model | None:
    """Return the model that makes the notes; None: a script does. Raise UsageError if the user
    cannot be asked, or a budget cannot be kept."""
    if options.with_model is None:
        if options.budget is not None or options.log is not None:
            raise UsageError("--budget and --log belong to --with-model")
        return None
    require_yes_or_terminal(options)
    model = parse_model(options.with_model)
    if options.budget is not None and model.price is None:
        raise UsageError(f"no price is known of {model.name}, so --budget cannot be kept")
    return model


def play_subjects(
    found: Sequence[tuple[Path, Subject]], model: Model | None, options: argparse.Namespace
) -> list[Result] | None:
    """Play all; None if the user does not want the model asked."""
    progress = show_played if sys.stderr.isatty() else None
    subjects = [subject for _, subject in found]
    if model is None:
        return replay(subjects, progress)
    for line in render_plan(plan_model_replay(found, model, progress)):
        print(escape_line(line), file=sys.stderr)
    if not options.yes and not confirm("Ask the model?"):
        return None
    with contextlib.ExitStack() as stack:
        name = options.log or stack.enter_context(TemporaryDirectory(prefix="om-proxy-replay-"))
        folder = Path(name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return replay_with_model(subjects, model, folder, options.budget, show_spent)


def show_spent(dollars: float) -> None:
    if sys.stderr.isatty():
        print(f"${dollars:.4f} spent", end="\r", file=sys.stderr, flush=True)


def render_plan(plan: ModelPlan) -> Iterator[str]:
    price = plan.model.price
    yield f"{plan.model.name} makes the notes. Messages go to {plan.host}, their secrets replaced:"
    for path, tokens in plan.files.items():
        yield f"  {render_number(tokens)} tokens of {path}"
    sizes = render_number(plan.tokens.prompt), render_number(plan.tokens.output)
    yield f"About {render_count(plan.calls, 'call')}: {sizes[0]} tokens read, {sizes[1]} written;"
    if price is None:
        yield "the price is not known."
    else:
        each = f"${price.input * MILLION:.2f} and ${price.output * MILLION:.2f} a million"
        yield f"at {each}, about ${plan.dollars:.2f}."


def show_played(done: int, of: int) -> None:
    """Say in a line on the terminal how far the replay is."""
    end = "\r" if done < of else "\r\033[K"
    print(f"played {done} of {of}", end=end, file=sys.stderr, flush=True)


def name_conversation(conversation: Conversation, options: argparse.Namespace) -> str:
    title = None if options.no_titles else conversation.title
    return escape_line(title or conversation.id)[:MAX_SHORT_ID_CHARS]


# ── what to play ──────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def spool_stdin(paths: Sequence[str]) -> Iterator[list[Path]]:
    """Yield the paths; `-` is standard input, kept in a file until the block ends."""
    if "-" not in paths:
        yield [Path(path) for path in paths]
        return
    with TemporaryDirectory(prefix="om-proxy-replay-") as folder:
        spooled = Path(folder, "stdin.jsonl")
        with spooled.open("wb") as file:
            while piece := sys.stdin.buffer.read(1 << 20):
                file.write(piece)
        yield [spooled if path == "-" else Path(path) for path in paths]


def list_conversations(
    paths: Sequence[Path], program: str | None, skipped: list[str]
) -> Iterator[tuple[Path, Conversation]]:
    """Yield every conversation of the files, of the known places where none is named. Raise NotFound
    if there is no file."""
    files = list(list_files(paths, program))
    if not files:
        places = ", ".join(map(str, paths)) or "~/.claude, ~/.config/claude and ~/.codex"
        raise NotFound(f"no history was found in {places}: name a file of {list_names()}")
    for path, reader_name in files:
        try:
            for conversation in read_history(path, reader_name):
                yield path, conversation
        except (OmError, OSError) as exc:
            if path in paths:
                raise
            skipped.append(
                str(exc) if isinstance(exc, OmError) else f"{path}: {type(exc).__name__}"
            )


def list_files(paths: Sequence[Path], program: str | None) -> Iterator[tuple[Path, str | None]]:
    readers = [find_reader(program)] if program else READERS
    if not paths:
        for reader in readers:
            yield from ((path, reader.program) for path in reader.list_places())
        return
    for path in paths:
        if not path.exists():
            raise NotFound(f"there is no file {path}")
        if path.is_dir() and program is None and not is_export_folder(path):
            inner = sorted(file for file in path.rglob("*.jsonl*") if file.is_file())
            yield from ((file, program) for file in inner)
        else:
            yield path, program


def is_export_folder(path: Path) -> bool:
    """Return whether a reader takes the folder as a whole."""
    head = read_head(path)
    return any(reader.fits(head) for reader in READERS)


def is_recent(conversation: Conversation, seconds: float | None) -> bool:
    return seconds is None or find_last_time(conversation) >= time.time() - seconds


def find_last_time(conversation: Conversation) -> float:
    return max((call.replied_at for call in conversation.calls), default=0.0)


def rank(numbered: tuple[int, tuple[Path, Conversation]]) -> tuple[int, int]:
    """Return the tokens that the conversation's calls read, roughly; of equal ones, the first."""
    number, (_, conversation) = numbered
    calls = list_main_calls(conversation)
    chars = sum(len(str(message.get("content"))) for message in conversation.messages)
    estimate = len(calls) * chars // 8
    return sum(c.usage.input_tokens if c.usage else 0 for c in calls) or estimate, -number


def print_list(found: Iterable[tuple[Path, Conversation]], options: argparse.Namespace) -> None:
    rows = [
        (
            name_conversation(conversation, options),
            conversation.program,
            render_time(find_last_time(conversation) or None),
            render_count(len(list_main_calls(conversation)), "call"),
            str(path),
        )
        for path, conversation in found
    ]
    print_table(LISTED_COLUMNS, rows, as_json=options.json)


# ── options ───────────────────────────────────────────────────────────────────────────────────────


def read_price(text: str | None) -> Price | None:
    """Read `in=3,out=15`: dollars of a million tokens; `cached` and `write` cost as `in` unless they
    are named."""
    if text is None:
        return None
    try:
        given = {
            name: float(value) / MILLION
            for name, _, value in (part.partition("=") for part in text.split(","))
        }
    except ValueError:
        given = {}
    if not {"in", "out"} <= given.keys() <= PRICE_KEYS:
        raise UsageError("--price must be dollars of a million tokens, as in in=3,out=15")
    return Price(
        given["in"], given["out"], given.get("cached", given["in"]), given.get("write", given["in"])
    )


def read_rules(path: str | None) -> dict[str, Any] | None:
    """Return the settings of a configuration file, after the checks that `serve` makes."""
    if path is None:
        return None
    load(path, {})
    return dict(yaml.safe_load(read_file(Path(path))) or {})
