"""A report says "better" only where a test does, and counts questions without an answer apart."""

import pytest

from om_proxy.proof.evaluation.report import build_report, render_page

RUN = {
    "benchmark": "tiny",
    "questions": 20,
    "all_questions": 20,
    "models": {"actor": "played@http://127.0.0.1:1/v1", "memory": "m", "judge": "j"},
    "settings": "{}",
    "version": "0.1.0",
    "ceiling": 0.936,
    "is_played": True,
}


def make_row(case: int, verdicts: dict[str, bool], **fields):
    answer = {
        "question": f"q{case}",
        "kind": "k",
        "is_unanswerable": False,
        "hypothesis": "",
        "input_tokens": 100,
        "output_tokens": 10,
        "dollars": 0.01,
        "model": "m",
        "f1": 0.5,
    } | fields
    answers = [answer | {"system": name, "right": right} for name, right in verdicts.items()]
    return {"case": case, "answers": answers}


def build(wins: int, losses: int, **fields):
    rows = [make_row(n, {"om": n < wins, "full": n >= wins}) for n in range(wins + losses)]
    return build_report(RUN | fields, rows, [])


def test_a_system_is_better_only_where_the_test_says_so():
    assert build(6, 0)["differences"][0]["better"] == "om"
    assert build(0, 6)["differences"][0]["better"] == "full"
    assert build(5, 0)["differences"][0]["better"] is None
    page = render_page(build(5, 0))
    assert "no significant difference" in page
    assert "is better" not in page


def test_a_right_answer_has_a_price():
    found = build(10, 10)["systems"]["om"]
    assert (found["right"], found["asked"]) == (10, 20)
    assert found["dollars_a_right_answer"] == pytest.approx(0.02)
    assert (
        build_report(RUN, [make_row(1, {"om": False})], [])["systems"]["om"][
            "dollars_a_right_answer"
        ]
        is None
    )
    unknown = build_report(RUN, [make_row(1, {"om": True}, dollars=None)], [])
    assert unknown["systems"]["om"]["dollars"] is None
    assert "price not known" in render_page(unknown)


def test_questions_without_an_answer_are_counted_apart():
    rows = [make_row(1, {"om": True}), make_row(2, {"om": False}, is_unanswerable=True)]
    report = build_report(RUN, rows, [])
    assert report["systems"]["om"]["asked"] == report["questions"] == 1
    assert report["unanswerable"]["om"]["right"] == 0


def test_the_page_names_what_the_figures_depend_on():
    page = render_page(build(3, 2))
    assert page.startswith("# tiny, 20 of 20 questions, actor played@")
    for words in ("A played run", "93.6%", "McNemar", "by conversation", "SHA-256"):
        assert words in page
