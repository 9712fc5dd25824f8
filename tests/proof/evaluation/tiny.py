"""A benchmark of three small cases in LongMemEval's form, with canaries that no prompt may hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from om_proxy.proof.evaluation import longmemeval
from om_proxy.proof.evaluation.benchmarks import Benchmark, Source
from om_proxy.proof.evaluation.run import RunPlan

ANSWERS = ("canary-kestrel", "canary-lapwing", 417_017)
KIND = "multi-session"
# long enough that a session that was left alone gets notes
FILLER = " ".join(f"Crane {n} of the north quay lifts {n * 3} tons before noon." for n in range(30))
HIDDEN = ("answer_", "canary", "417017", KIND, "has_answer", "quux")  # in ids, answers, types


def write_data(folder: Path, cases: int = 3) -> Path:
    """Write the file: each case has two sessions, the newer one first, and one question."""
    path = folder / "tiny.json"
    path.write_text(json.dumps([make_entry(number) for number in range(cases)]))
    return path


def make_entry(number: int) -> dict[str, Any]:
    return {
        "question_id": f"quux{number}",
        "question_type": KIND,
        "question": f"Which berth has boat {number}?",
        "answer": ANSWERS[number % len(ANSWERS)],
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": [f"answer_quux{number}_2", f"sess_{number}_1"],
        "haystack_dates": ["2023/05/25 (Thu) 09:00", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            make_session(f"The boat {number} lies at berth {number + 14} now.", has_answer=True),
            make_session(f"Tell me of the harbour, boat {number}."),
        ],
        "answer_session_ids": [f"answer_quux{number}_2"],
    }


def make_session(text: str, *, has_answer: bool = False) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": text, "has_answer": has_answer},
        {"role": "assistant", "content": FILLER},
        {"role": "user", "content": "Thank you, that will do for the day."},
        {"role": "assistant", "content": "You are welcome, and the harbour is open at six."},
    ]


def make_benchmark(data: Path) -> Benchmark:
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    source = Source(data.name, "nowhere", data.stat().st_size, digest, "none")
    return Benchmark("tiny", source, longmemeval.read_cases, longmemeval.choose)


def make_plan(data: Path, actor: str = "script:gold") -> RunPlan:
    models = {"actor": actor, "memory": "script:notes", "judge": "script:judge"}
    return RunPlan(
        make_benchmark(data),
        data,
        None,
        None,
        ["om", "full", "none", "oracle"],
        models,
        dict.fromkeys(models),
    )
