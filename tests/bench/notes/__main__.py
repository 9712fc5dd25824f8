"""`scripts/notes`: plays a recorded conversation through the proxy, with a memory model of your
choice, and measures the notes.

The memory model is a folder (each call is a file; somebody writes the answer beside it), or a model
behind an OpenAI-compatible address. Runs are resumable: a prompt that was answered once is not
asked again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from om_proxy.common.errors import OmError
from om_proxy.observability import logs
from tests.bench.notes import judge, report
from tests.bench.notes.facts import Fact, Verdict, judge_by_words, read_facts
from tests.bench.notes.folder import AnswerMissing, Folder
from tests.bench.notes.play import Stopped, count_tokens, merge, play
from tests.bench.notes.recorded import Recording, read_recording
from tests.bench.notes.server import Address, NotesServer
from tests.e2e.replay import SHARED

FILES = {
    "locomo": "locomo10.json",
    "coding": "coding-session.jsonl",
    "airline": "airline-service.jsonl",
}
EXAMPLES = """\
examples:
  scripts/notes locomo:3 --folder /tmp/notes --judge --message-tokens 5000 --buffer-tokens 2000 --observation-tokens 4000
  scripts/notes coding --calls 120 --folder /tmp/notes --facts facts.jsonl
  scripts/notes locomo:0 --memory-url http://127.0.0.1:11434/v1 --memory-model qwen3:8b --out report.json
  scripts/notes own.jsonl --folder /tmp/notes --set memory.observation.prompt=condensed
"""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="scripts/notes",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add(
        "recording",
        help="locomo:NUMBER, coding, airline, or a file of the same shape (FILE:NUMBER for one of several conversations)",
    )
    add("--data", type=Path, default=SHARED, help="folder of the recordings that are named")
    add("--calls", type=int, help="play only so many calls")
    add("--sessions", type=int, help="of a LoCoMo conversation, only the first ones")
    add(
        "--names",
        action="store_true",
        help="of a LoCoMo conversation, put the speaker's name before each text",
    )
    add(
        "--folder",
        type=Path,
        help="where prompts and answers lie; needed unless --memory-url is given",
    )
    add(
        "--timeout",
        type=float,
        default=3600.0,
        help="seconds to wait for an answer (default: an hour)",
    )
    add(
        "--memory-url",
        help="base URL of the memory model, with its /v1; OM_NOTES_KEY in the environment holds its key",
    )
    add("--memory-model", help="the model's name there")
    add(
        "--judge",
        action="store_true",
        help="have facts judged: by the folder or address of the memory model, unless --judge-url is given",
    )
    add("--judge-url", help="base URL of another judge; OM_JUDGE_KEY holds its key")
    add("--judge-model", help="the judge's name there")
    add("--judge-batch", type=int, default=30, help="facts in one of the judge's prompts")
    add(
        "--facts",
        type=Path,
        help='facts to look for: a line each, text or JSON with "id", "text" or "patterns", "message"',
    )
    add(
        "--message-tokens",
        type=int,
        help="memory.observation.message_tokens, as the two below; default: the proxy's own",
    )
    add("--buffer-tokens", type=yaml.safe_load)
    add("--observation-tokens", type=int)
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other setting, e.g. memory.reflection.buffer_activation=0.6",
    )
    add("--out", type=Path, help="file for all figures, verdicts and notes, as JSON")
    chosen = options.parse_args(given)
    if not chosen.folder and not chosen.memory_url:
        options.error(
            "name a memory model: --folder DIR, or --memory-url URL with --memory-model NAME"
        )
    for kind in ("memory", "judge"):
        if bool(getattr(chosen, f"{kind}_url")) != bool(getattr(chosen, f"{kind}_model")):
            options.error(f"--{kind}-url and --{kind}-model belong together")
    return chosen


def settings_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """The thresholds and every `--set`, as a configuration. Raises ValueError for a setting without
    a value."""
    observation = {"message_tokens": chosen.message_tokens, "buffer_tokens": chosen.buffer_tokens}
    settings: dict[str, Any] = {
        "memory": {
            "observation": {k: v for k, v in observation.items() if v is not None},
            "reflection": {"observation_tokens": chosen.observation_tokens}
            if chosen.observation_tokens
            else {},
        }
    }
    for given in chosen.set:
        key, equals, value = given.partition("=")
        if not equals:
            raise ValueError(f"--set {given}: write KEY=VALUE")
        nested: Any = yaml.safe_load(value)
        for name in reversed(key.split(".")):
            nested = {name: nested}
        settings = merge(settings, nested)
    return settings


def recording_of(chosen: argparse.Namespace) -> Recording:
    """Raises ValueError or OSError where there is none."""
    name, number = chosen.recording, 0
    if match := re.fullmatch(r"(.+):(\d+)", name):
        name, number = match[1], int(match[2])
    path = chosen.data / FILES[name] if name in FILES else Path(name)
    if not path.exists():
        raise ValueError(
            f"no recording at {path}; name a file, or the recordings' folder with --data"
        )
    recording = read_recording(path, number, sessions=chosen.sessions, names=chosen.names)
    facts = [*recording.facts, *(read_facts(chosen.facts) if chosen.facts else ())]
    return replace(recording, calls=recording.calls[: chosen.calls], facts=facts)


async def run(chosen: argparse.Namespace) -> dict[str, Any]:
    recording = recording_of(chosen)
    path = chosen.folder or Path(tempfile.mkdtemp(prefix="om-notes-"))
    folder = folder_of(path, chosen.memory_url, chosen.memory_model, "OM_NOTES_KEY", chosen.timeout)
    server = NotesServer(folder.ask, count=count_tokens)
    tell(f"{recording.name}: {len(recording.calls)} calls; prompts and answers in {path}")
    settings = settings_of(chosen)
    played = await play(recording, server, settings, tell)
    stages = report.stages(recording, played, recording.facts)
    verdicts = report.Verdicts()
    for stage, kept in stages.items():
        verdicts.add(
            "words", stage, {fact.id: judge_by_words(fact, kept.notes) for fact in kept.facts}
        )
    if chosen.judge or chosen.judge_url:
        judging = (
            folder_of(path, chosen.judge_url, chosen.judge_model, "OM_JUDGE_KEY", chosen.timeout)
            if chosen.judge_url
            else folder
        )
        for stage, kept in stages.items():
            found = await judge_facts(
                judging, kept.facts, kept.notes, recording.people, chosen.judge_batch
            )
            verdicts.add("judge", stage, found)
    measured = report.measure(
        recording, played, server.calls, verdicts, recording.facts, count_tokens
    )
    notes = {stage: kept.notes for stage, kept in stages.items()}
    return {**measured, "settings": settings, "notes": notes}


def folder_of(path: Path, url: str | None, model: str | None, key: str, timeout_s: float) -> Folder:
    answer_with = (
        Address(url, model or "", os.environ.get(key), timeout_s=timeout_s).answer if url else None
    )
    return Folder(path, timeout_s=timeout_s, answer_with=answer_with, tell=tell)


async def judge_facts(
    folder: Folder, facts: Sequence[Fact], notes: str, people: str, batch: int
) -> dict[str, Verdict]:
    verdicts: dict[str, Verdict] = {}
    for some in judge.batch_facts(facts, batch):
        answer = await folder.ask("judge", judge.write_prompt(some, notes, people))
        verdicts |= judge.read_verdicts(answer, some)
    return verdicts


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    chosen = arguments()
    logs.configure_log("off")
    try:
        measured = asyncio.run(run(chosen))
    except (AnswerMissing, Stopped, OmError, ValueError, OSError) as exc:
        print(f"scripts/notes: {exc}", file=sys.stderr)
        return 1
    for line in report.render(measured):
        print(line)
    if chosen.out:
        chosen.out.write_text(
            json.dumps(measured, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
        print(f"\nAll of it: {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
