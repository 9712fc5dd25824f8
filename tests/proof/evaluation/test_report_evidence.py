"""A session reached the prompt if each of its messages stands there raw, or its day stands in notes."""

from __future__ import annotations

import json

import pytest

from om_proxy.proof.evaluation.call_log import CallKey, CallRecord
from om_proxy.proof.evaluation.report import EvidenceReach, Reach, build_report, render_page
from tests.proof.evaluation.test_report import RUN, make_row

BERTH, CRANE = "The boat lies at berth 14 now.", "The crane lifts\n  nine tons."
TRANSCRIPT = (
    "Guidance.\n# New messages\n\n<transcript>\n"
    "Date: Tuesday, May 2, 2023 (this week May 1-7)\nUser (09:00): The boat lies at berth 14 now.\n"
    "Date: Wednesday, May 3, 2023 (this week May 1-7)\nUser (10:00):\n  The crane lifts\n    nine tons.\n"
    "</transcript>"
)


def record(step: str, case: str, text: str) -> CallRecord:
    request = {"messages": [{"role": "user", "content": text}]}
    return CallRecord(CallKey(step, case, 1, ""), "m", request, {}, None, 1)


def write_oracle_prompt(*sessions: list[str]) -> str:
    """In LongMemEval's form."""
    return "".join(
        f"\n### Session {n}:\nSession Date: x\nSession Content:\n"
        f"\n{json.dumps([{'role': 'user', 'content': text} for text in texts])}\n"
        for n, texts in enumerate(sessions, 1)
    )


def find_reach(prompt: str, *sessions: list[str]) -> Reach:
    reach = EvidenceReach()
    reach.add(record("memory", "1", TRANSCRIPT))
    reach.add(record("actor:om", "q1", prompt))
    reach.add(record("actor:oracle", "q1", write_oracle_prompt(*sessions)))
    return reach.by_question["q1"]


@pytest.mark.parametrize(
    ("prompt", "reached"),
    [
        ("<observations>\nDate: May 2, 2023 (a year ago)\n* a boat\n</observations>", 1),
        ("<observations>\nDate: May 2, 2023\n\nDate: May 3, 2023\n</observations>", 2),
        (f"<observations>\n</observations>\n{BERTH}", 1),
        ("<observations>\nDate: May 9, 2023\n* The boat lies at berth 14 now.\n</observations>", 0),
        ("Nothing.", 0),
    ],
)
def test_a_session_reached_the_prompt_raw_or_under_its_day(prompt: str, reached: int) -> None:
    assert find_reach(prompt, [BERTH], [CRANE]) == Reach(2, reached)


def test_every_message_of_a_session_must_have_reached_it() -> None:
    assert find_reach(f"{BERTH}", [BERTH, CRANE]) == Reach(1, 0)


def test_what_another_case_was_shown_does_not_count() -> None:
    reach = EvidenceReach()
    reach.add(record("memory", "1", TRANSCRIPT))
    reach.add(record("memory", "2", "# New messages\nDate: May 2, 2023\nUser: other words"))
    reach.add(record("actor:om", "q2", "<observations>\nDate: May 2, 2023\n</observations>"))
    reach.add(record("actor:oracle", "q2", write_oracle_prompt([BERTH])))
    assert reach.by_question["q2"] == Reach(1, 0)


def test_a_report_holds_reach_against_correctness() -> None:
    rows = [make_row(n, {"om": n == 1, "oracle": True}) for n in (1, 2)]
    records = [
        record("memory", "1", TRANSCRIPT),
        *(record("actor:om", f"q{n}", BERTH if n == 1 else "Nothing.") for n in (1, 2)),
        *(record("actor:oracle", f"q{n}", write_oracle_prompt([BERTH])) for n in (1, 2)),
    ]
    report = build_report(RUN, rows, records)
    evidence = report["evidence"]
    assert (evidence["sessions"], evidence["reached"]) == (2, 1)
    assert (evidence["all_reached"]["right"], evidence["some_missing"]["right"]) == (1, 0)
    page = render_page(report)
    assert "1 of 2 sessions that hold an answer" in page
    assert "Where one did not, om was right in 0 of 1" in page
    assert build_report(RUN, rows, records[:3])["evidence"] is None
