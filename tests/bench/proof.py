"""The figures of docs/contributing/proof.md, on recorded conversations.

1. The coding session is played as `om-proxy replay` plays it: its recorded bill is met within 5 %, and
   the ratios with memory are those of proof.json, give or take .01.
2. Service chats end below the threshold: with memory, each costs at most 1.02 times as much.
3. Recorded users in many threads: how much of the evidence of their questions stands in the prompt of
   a new thread a week later, with notes of idle threads and without.

Run by `scripts/bench proof`; ends with 1 where a promise is broken. `--learn` writes proof.json anew.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import orjson

from om_proxy.observability import logs
from om_proxy.proof.conversation import Conversation
from om_proxy.proof.readers.registry import read_history
from om_proxy.proof.replay import RATES, Result, compute_ratio, examine, replay
from om_proxy.proof.replay_table import render_results
from tests.bench.shared_notes import IDLE, WITHOUT_IDLE, played, recordings
from tests.e2e.replay import SHARED

NUMBERS = Path(__file__).with_name("proof.json")
MAX_BILL_DEVIATION, MAX_RATIO_DEVIATION = 0.05, 0.01
MAX_SHORT_CHAT_RATIO = 1.02
# of the evidence of all questions, and of the recording with the least
MIN_REACH = {IDLE: (0.99, 0.99), WITHOUT_IDLE: (0.93, 0.79)}
RECORDINGS = {
    "coding": "coding-session.jsonl", "service": "airline-service.jsonl", "reach": "locomo10.json",
}  # fmt: skip


def play_all(conversations: Iterable[Conversation]) -> list[Result]:
    subjects = [examine(conversation) for conversation in conversations]
    return replay([subject for subject in subjects if subject])


def play_coding(path: Path, *, learns: bool) -> bool:
    (result,) = play_all(read_history(path))
    print("\n".join(render_results([result], {result.subject.conversation.id: path.stem})))
    found = {
        name: {
            rates.name: round(compute_ratio(bills[rates.name], result.as_sent), 3)
            for rates in RATES
        }
        for name, bills in result.with_memory.items()
    }
    if learns:
        NUMBERS.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    told = orjson.loads(NUMBERS.read_bytes())
    recorded = result.recorded.dollars if result.recorded else None
    is_billed = bool(recorded and result.as_sent.dollars) and (
        abs((result.as_sent.dollars or 0) / (recorded or 1) - 1) <= MAX_BILL_DEVIATION
    )
    is_told = all(
        abs(ratio - told.get(name, {}).get(rates, 0.0)) <= MAX_RATIO_DEVIATION
        for name, ratios in found.items()
        for rates, ratio in ratios.items()
    )
    return check(is_billed, f"the recorded bill is met within {MAX_BILL_DEVIATION:.0%}") & check(
        is_told, f"the ratios are those of {NUMBERS.name}, give or take {MAX_RATIO_DEVIATION}"
    )


def play_service(path: Path, **_: object) -> bool:
    results = play_all(read_history(path))
    worst = max(ratio for result in results for ratio in result.ratios.values())
    print(f"\n{len(results)} service chats: at most {worst:.3f} times the cost without memory")
    return check(
        worst <= MAX_SHORT_CHAT_RATIO, f"a short chat costs at most {MAX_SHORT_CHAT_RATIO}"
    )


def play_reach(path: Path, **_: object) -> bool:
    kept = [asyncio.run(measure_reach(path, settings)) for settings in MIN_REACH]
    return all(kept)


async def measure_reach(path: Path, settings: str) -> bool:
    found = [await played(recording, settings) for recording in recordings(path)]
    reach = sum(one.told for one in found) / sum(one.evidence for one in found)
    worst = min(one.share for one in found)
    print(
        f"\nEvidence reach, {settings}: {reach:.3f} of all, worst of {len(found)} users {worst:.3f}"
    )
    min_reach, min_worst = MIN_REACH[settings]
    return check(
        reach >= min_reach and worst >= min_worst, f"reach is {min_reach}, {min_worst} at the worst"
    )


def check(holds: bool, promise: str) -> bool:
    if not holds:
        print(f"\n  BROKEN: {promise}", file=sys.stderr)
    return holds


PARTS: dict[str, Callable[..., bool]] = {
    "coding": play_coding, "service": play_service, "reach": play_reach,
}  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/bench proof", description=__doc__)
    options.add_argument(
        "--data", type=Path, default=SHARED, help="folder of the recorded conversations"
    )
    options.add_argument("--only", choices=PARTS)
    options.add_argument("--learn", action="store_true", help="write the ratios to proof.json")
    chosen = options.parse_args()
    logs.configure_log("off")
    kept = True
    for name, part in PARTS.items():
        path = chosen.data / RECORDINGS[name]
        if chosen.only in (None, name):
            if not path.exists():
                raise SystemExit(
                    f"scripts/bench: no {path.name} in {path.parent}; name its folder with --data"
                )
            kept &= part(path, learns=chosen.learn)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
