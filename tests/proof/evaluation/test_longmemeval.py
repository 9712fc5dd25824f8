"""LongMemEval's file is read with its traps, and its judge is asked in its own words."""

import hashlib
import json

import pytest

from om_proxy.proof.evaluation.benchmarks import Question
from om_proxy.proof.evaluation.case_player import (
    is_right,
    read_prompts,
    render_history_prompt,
    render_judge_prompt,
)
from om_proxy.proof.evaluation.longmemeval import SAMPLE_BY_KIND, choose, read_cases
from tests.proof.evaluation.tiny import KIND, write_data

# computed from evaluate_qa.py of LongMemEval, at the commit that the file of prompts names
SHA256_BY_JUDGE_PROMPT = {
    "general": "fba020ba3d57982efdc9a937c1c01f897b789a608c7f88e60244121f6505e5bc",
    "temporal-reasoning": "8d33a5fdd83afeeb4592454a965eab43d1fcb2dedc042d1d3892f4254be6c273",
    "knowledge-update": "183a9b3a6197ec620940f610cdc1207201ec98c1113dd633ea685cfc322fafac",
    "single-session-preference": "741ee3bcbea7ff5e8ed359acef61d2f8ded3de021bbcff6ee13de455f2e2aa9b",
    "abstention": "5c0b365a1e1d06db36377c735432b56e122ca3c428f89faf61d43a0d5a7e050b",
}


def make_question(name="q", kind=KIND, **fields):
    values = {"text": "Where?", "answer": "Berth 7", "at": 1.0, "date": "today"} | fields
    return Question(name=name, kind=kind, evidence=frozenset(), **values)


def test_sessions_stand_in_the_order_of_their_dates(tmp_path):
    first, *_ = read_cases(write_data(tmp_path))
    assert [session.name for session in first.sessions] == ["sess_0_1", "answer_quux0_2"]
    assert first.sessions[0].at == 1684549260.0  # 2023-05-20 02:21, UTC
    assert first.questions[0].at > first.sessions[-1].at


def test_an_answer_that_is_a_number_is_a_text(tmp_path):
    cases = list(read_cases(write_data(tmp_path)))
    assert cases[2].questions[0].answer == "417017"


def test_no_message_says_that_it_holds_the_answer(tmp_path):
    for case in read_cases(write_data(tmp_path)):
        for session in case.sessions:
            assert all(message.keys() == {"role", "content"} for message in session.messages)
            assert session.messages[-1]["role"] == "assistant"


def test_a_question_without_an_answer_is_known_by_its_id(tmp_path):
    path = write_data(tmp_path, 1)
    entries = json.loads(path.read_text())
    entries[0]["question_id"] += "_abs"
    path.write_text(json.dumps(entries))
    (case,) = read_cases(path)
    assert case.questions[0].is_unanswerable


def test_a_sample_keeps_the_shares_of_the_kinds():
    questions = [make_question(f"{kind}-{n}", kind) for kind in SAMPLE_BY_KIND for n in range(30)]
    chosen = choose(questions, 60)
    assert len(chosen) == 60
    assert choose(list(reversed(questions)), 60) == chosen, "by hash, in any order"
    assert choose(questions, None) == {question.name for question in questions}
    for kind, count in SAMPLE_BY_KIND.items():
        assert sum(name.startswith(kind) for name in chosen) == count


@pytest.mark.parametrize("kind", read_prompts()["judge"])
def test_the_judges_prompts_are_the_published_ones(kind):
    template = read_prompts()["judge"][kind]
    assert hashlib.sha256(template.encode()).hexdigest() == SHA256_BY_JUDGE_PROMPT[kind]


@pytest.mark.parametrize(
    ("kind", "is_unanswerable", "words"),
    [
        ("single-session-user", False, "only contains a subset"),
        ("multi-session", False, "only contains a subset"),
        ("temporal-reasoning", False, "off-by-one errors"),
        ("knowledge-update", False, "along with an updated answer"),
        ("single-session-preference", False, "Rubric: Berth 7"),
        ("temporal-reasoning", True, "Explanation: Berth 7"),
    ],
)
def test_each_kind_has_its_judge(kind, is_unanswerable, words):
    question = make_question(kind=kind, is_unanswerable=is_unanswerable)
    prompt = render_judge_prompt(question, "At berth 7.")
    assert words in prompt
    assert "Model Response: At berth 7.\n\n" in prompt


@pytest.mark.parametrize(("verdict", "right"), [("Yes.", True), ("no", False), ("", False)])
def test_a_verdict_is_read_as_the_official_script_does(verdict, right):
    assert is_right(verdict) is right


def test_the_prompt_with_whole_sessions_holds_them_with_their_dates(tmp_path):
    case, *_ = read_cases(write_data(tmp_path))
    prompt = render_history_prompt(case.sessions, case.questions[0])
    assert prompt.index("Session Date: 2023/05/20") < prompt.index("Session Date: 2023/05/25")
    assert prompt.endswith("Question: Which berth has boat 0?\nAnswer:")
