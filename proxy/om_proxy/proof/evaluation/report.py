"""Compute a run's report from its cases and its calls, and write it as a page."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import orjson

from om_proxy.proof.evaluation.call_log import CallRecord
from om_proxy.proof.evaluation.evidence import EvidenceReach, Reach
from om_proxy.proof.evaluation.logged_models import MEMORY_STEP
from om_proxy.proof.evaluation.scoring import (
    find_cluster_interval,
    find_mcnemar_p,
    find_wilson_interval,
)

SIGNIFICANT_P = 0.05

Row = Mapping[str, Any]


def build_report(
    run: Mapping[str, Any], rows: Sequence[Row], records: Iterable[CallRecord]
) -> dict[str, Any]:
    """Return every figure of a run. It depends on its arguments only: whoever has the folder can
    compute it again."""
    answers = [answer | {"case": row["case"]} for row in rows for answer in row.get("answers", ())]
    answered = [answer for answer in answers if not answer["is_unanswerable"]]
    by_system = _group(answered, "system")
    reach = EvidenceReach()
    digest, notes = _sum_calls(records, reach)
    counted = [row["refused_calls"] for row in rows if "refused_calls" in row]
    if counted:  # runs from before they were counted stay valid
        refused: Counter[str] = Counter()
        for calls in counted:
            refused.update(calls)
        notes["refused_calls"] = dict(sorted(refused.items()))
    return {
        "title": render_title(run),
        "run": run,
        "calls_sha256": digest,
        "questions": len({answer["question"] for answer in answered}),
        "systems": {name: _score_system(group) for name, group in by_system.items()},
        "unanswerable": {
            name: _score_share(group)
            for name, group in _group(
                [answer for answer in answers if answer["is_unanswerable"]], "system"
            ).items()
        },
        "differences": [_compare(by_system, *pair) for pair in combinations(by_system, 2)],
        "notes": notes,
        "evidence": _score_evidence(by_system.get("om", ()), reach.by_question),
        "planted": next((row for row in rows if "planted" in row), None),
    }


def render_title(run: Mapping[str, Any]) -> str:
    """Name what every figure depends on."""
    models = ", ".join(f"{step} {name}" for step, name in run["models"].items())
    return (
        f"{run['benchmark']}, {run['questions']} of {run['all_questions']} questions, {models}, "
        f"memory {run['settings']}, om-proxy {run['version']}"
    )


def _score_system(answers: Sequence[Row]) -> dict[str, Any]:
    dollars = _sum_known(answer["dollars"] for answer in answers)
    right = sum(answer["right"] for answer in answers)
    by_case: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        by_case[str(answer["case"])].append(answer["right"])
    scores = [answer["f1"] for answer in answers if "f1" in answer]
    found = _score_share(answers) | {
        "interval_by_case": find_cluster_interval(by_case),
        "kinds": {kind: _score_share(group) for kind, group in _group(answers, "kind").items()},
        "input_tokens": sum(answer["input_tokens"] for answer in answers),
        "output_tokens": sum(answer["output_tokens"] for answer in answers),
        "dollars": dollars,
        "dollars_a_right_answer": dollars / right if dollars is not None and right else None,
        "models": sorted({str(answer["model"]) for answer in answers}),
    }
    return found | ({"f1": sum(scores) / len(scores)} if scores else {})


def _score_share(answers: Sequence[Row]) -> dict[str, Any]:
    right = sum(answer["right"] for answer in answers)
    return {
        "asked": len(answers),
        "right": right,
        "accuracy": right / len(answers),
        "interval": find_wilson_interval(right, len(answers)),
    }


def _compare(by_system: Mapping[str, Sequence[Row]], first: str, second: str) -> dict[str, Any]:
    verdicts = [
        {answer["question"]: answer["right"] for answer in by_system[name]}
        for name in (first, second)
    ]
    only_first = sum(right and not verdicts[1][name] for name, right in verdicts[0].items())
    only_second = sum(right and not verdicts[0][name] for name, right in verdicts[1].items())
    p = find_mcnemar_p(only_first, only_second)
    better = first if only_first > only_second else second
    return {
        "systems": [first, second],
        "only_first": only_first,
        "only_second": only_second,
        "p": p,
        "better": better if p < SIGNIFICANT_P else None,
    }


def _score_evidence(answers: Sequence[Row], reach: Mapping[str, Reach]) -> dict[str, Any] | None:
    """Return how many answers are right where all evidence reached the prompt, and where some did
    not. None if the run has no oracle, whose prompts show what is evidence."""
    known = [
        (answer, reach[answer["question"]]) for answer in answers if answer["question"] in reach
    ]
    if not known:
        return None
    whole = [answer for answer, (sessions, reached) in known if reached == sessions]
    others = [answer for answer, (sessions, reached) in known if reached < sessions]
    return {
        "sessions": sum(sessions for _, (sessions, _) in known),
        "reached": sum(reached for _, (_, reached) in known),
        "all_reached": _score_share(whole) if whole else None,
        "some_missing": _score_share(others) if others else None,
    }


def _sum_calls(records: Iterable[CallRecord], reach: EvidenceReach) -> tuple[str, dict[str, Any]]:
    """Return the digest of all calls in whatever order, and what notes took; show each call to
    `reach`."""
    digests: list[bytes] = []
    notes: list[CallRecord] = []
    for record in records:
        digests.append(hash_record(record))
        reach.add(record)
        if record.key.step == MEMORY_STEP:
            notes.append(record)
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest(), {
        "calls": len(notes),
        "input_tokens": sum(record.input_tokens for record in notes),
        "output_tokens": sum(record.output_tokens for record in notes),
        "dollars": _sum_known(record.dollars for record in notes),
    }


def hash_record(record: CallRecord) -> bytes:
    parts = [*record.key, record.model, record.request, record.answer, record.dollars]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()


def _sum_known(dollars: Iterable[float | None]) -> float | None:
    """Return the sum; None if a price is not known."""
    found = list(dollars)
    return None if None in found else sum(d for d in found if d is not None)


def _group(answers: Iterable[Row], key: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for answer in answers:
        groups[answer[key]].append(answer)
    return dict(groups)
