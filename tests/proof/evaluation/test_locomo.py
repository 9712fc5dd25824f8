"""LoCoMo's file is read as it is: two speakers, captions, and questions that have no answer."""

import json

import pytest

from om_proxy.proof.evaluation.benchmarks import Question
from om_proxy.proof.evaluation.locomo import (
    KINDS,
    NOT_SAID,
    choose,
    read_cases,
    score,
    score_f1,
    score_parts_f1,
)

ENTRY = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Ana",
        "speaker_b": "Bo",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Bo", "dia_id": "D1:1", "text": "Hi Ana!"},
            {"speaker": "Ana", "dia_id": "D1:2", "text": "Look.", "blip_caption": "a red kayak"},
            {"speaker": "Ana", "dia_id": "D1:3", "text": "I bought it."},
        ],
        "session_2_date_time": "12:09 am on 3 April, 2023",
        "session_2": [{"speaker": "Ana", "dia_id": "D2:1", "text": "I look for a kayak."}],
        "session_3_date_time": "12:09 am on 3 June, 2023",
    },
    "qa": [
        {"question": "What?", "answer": 2022, "evidence": ["D1:3; D02:1"], "category": 2},
        {"question": "Who?", "adversarial_answer": "Bo", "evidence": [], "category": 5},
    ],
}


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([ENTRY]))
    (case,) = read_cases(path)
    return case


def test_the_first_speaker_is_the_user_and_captions_count(case):
    first, second = case.sessions
    assert first.messages[0] == {"role": "user", "content": "Ana: I look for a kayak."}
    assert [message["role"] for message in second.messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert second.messages[2]["content"] == (
        "Ana: Look. [shares a picture: a red kayak]\nAna: I bought it."
    )
    assert (first.at, second.at) == (1680480540.0, 1683554160.0)


def test_questions_have_their_evidence_and_those_without_answer_stand_apart(case):
    asked, unanswerable = case.questions
    assert (asked.answer, asked.kind, asked.evidence) == ("2022", KINDS[2], {"1", "2"})
    assert asked.at > case.sessions[-1].at
    assert (unanswerable.is_unanswerable, unanswerable.answer) == (True, NOT_SAID)
    assert choose(case.questions, 60) == {asked.name}
    assert choose(case.questions, None) == {asked.name, unanswerable.name}


@pytest.mark.parametrize(
    ("category", "answer", "f1"),
    [(4, "a red kayak", 1.0), (1, "kayak, tent", 0.5), (3, "red kayak; she says so", 1.0)],
)
def test_f1_goes_by_the_kind_of_question(category, answer, f1):
    question = Question("q", KINDS[category], "What?", answer, 0.0, "", frozenset())
    reply = "kayak" if category == 1 else "red kayak"
    assert score(question, reply) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("reply", "answer", "f1"),
    [
        ("The 7 May, 2023!", "7 May 2023", 1.0),
        ("7 May", "7 May 2023", 0.8),
        ("in June", "7 May 2023", 0.0),
        ("", "7 May 2023", 0.0),
    ],
)
def test_f1_counts_shared_words(reply, answer, f1):
    assert score_f1(reply, answer) == pytest.approx(f1)


def test_each_part_of_an_answer_has_its_best_part_of_the_reply():
    assert score_parts_f1("a kayak, the old tent", "tent, kayak") == pytest.approx((2 / 3 + 1) / 2)
