"""Check a run by its folder: every number is computed again from the log, and with the data every
prompt is made again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from om_proxy.proof.evaluation.benchmarks import check_data
from om_proxy.proof.evaluation.call_log import (
    CallLog,
    CallMissing,
    CallRecord,
    LoggedModels,
    find_dollars,
    hash_body,
)
from om_proxy.proof.evaluation.case_player import is_right
from om_proxy.proof.evaluation.report import build_report
from om_proxy.proof.evaluation.run import RunFolder, RunPlan, create_player, dump, read_price

Row = Mapping[str, Any]


def find_fault(folder: RunFolder) -> str | None:
    """Return the first difference between what a run says and what its log shows; None if there is
    none. No model is asked."""
    return next(_find_faults(folder), None)


def _find_faults(folder: RunFolder) -> Iterator[str]:
    run, rows = folder.read_run(), list(folder.read_cases())
    records = list(CallLog(folder.path))
    yield from _check_records(run, records)
    yield from _check_answers(rows, records)
    told, computed = folder.read_report(), build_report(run, rows, records)
    if "evidence" not in told:  # reports written before it was computed stay valid
        del computed["evidence"]
    yield from _compare("report.json", told, computed)


def _check_records(run: Row, records: Sequence[CallRecord]) -> Iterator[str]:
    """Yield calls whose prompt or price is not what their key or the run's prices say."""
    prices = {step: read_price(price) for step, price in run["prices"].items()}
    seen = set()
    for record in records:
        name = f"call {record.key.step} of case {record.key.case}"
        if record.key in seen:
            yield f"{name}: it stands twice in the log"
        seen.add(record.key)
        if hash_body(record.request) != record.key.body_sha256:
            yield f"{name}: its prompt is not the one that it is filed under"
        dollars = find_dollars(record.answer, prices[record.key.step.partition(":")[0]])
        if dollars != record.dollars:
            yield f"{name}: it cost {dollars}, and the log says {record.dollars}"


def _check_answers(rows: Sequence[Row], records: Sequence[CallRecord]) -> Iterator[str]:
    """Yield answers and verdicts of cases.jsonl that are not those of the log."""
    by_step = {(record.key.step, record.key.case): record for record in records}
    for row in rows:
        for answer in row.get("answers", ()):
            system, question = answer["system"], answer["question"]
            name = f"{system}, question {question}"
            reply = by_step.get((f"actor:{system}", question))
            verdict = by_step.get((f"judge:{system}", question))
            if reply is None or verdict is None:
                yield f"{name}: the log lacks its call"
                continue
            if reply.text != answer["hypothesis"]:
                yield f"{name}: cases.jsonl has another answer than the log"
            if is_right(verdict.text) != answer["right"]:
                yield f"{name}: cases.jsonl has another verdict than the log"
            told = answer["input_tokens"], answer["output_tokens"], answer["dollars"]
            if told != (reply.input_tokens, reply.output_tokens, reply.dollars):
                yield f"{name}: cases.jsonl has other tokens or dollars than the log"


def _compare(name: str, told: Row, computed: Row) -> Iterator[str]:
    for key in sorted(told.keys() | computed.keys()):
        if dump({key: told.get(key)}) != dump({key: computed.get(key)}):
            yield f"{name}: `{key}` is not what the log gives"


async def play_again(folder: RunFolder, plan: RunPlan) -> str | None:
    """Play a run with its log as the only model, and return the first difference: a prompt that the
    log does not have, or another row. None: every prompt was made again, byte for byte."""
    check_data(plan.benchmark.source, plan.data)
    asked = LoggedModels(CallLog(folder.path), {})
    player, cases = create_player(plan, asked), plan.choose_cases()
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
        if _dump_row(row) != _dump_row(again):
            return f"cases.jsonl, line {number}, is not what the log gives"
    return None


def _dump_row(row: Row) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
