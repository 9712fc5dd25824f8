"""What is taken back after a refusal, and what is learnt from it."""

from __future__ import annotations

import pytest

from om_proxy.apis.additions import (
    FIRST_WAIT_S,
    MAX_WAIT_S,
    NOTHING,
    Addition,
    Lessons,
    Trial,
)

A = Addition
CALL = A.LIMIT_NAME | A.LIMIT | A.TEMPERATURE | A.UNSTREAMED | A.SYSTEM
PROMPT = A.TOOL | A.SYSTEM | A.FORM | A.HISTORY


def run_trial(lessons: Lessons, additions: Addition, *statuses: int, now: float = 0.0) -> list[int]:
    """Run one request against these statuses. Return what was sent each time."""
    trial, sent = Trial(lessons, additions, lambda: now), []
    for status in statuses:
        sent.append(trial.sent)
        if not trial.take_back(status):
            trial.end(status)
            break
    return sent


@pytest.mark.parametrize("status", [200, 302, 401, 403, 429, 529])
def test_no_refusal(status: int) -> None:
    """These statuses say nothing of the request."""
    assert Trial(Lessons(), CALL, float).take_back(status) is NOTHING


def test_one_after_the_other() -> None:
    """What a server says is wrong with a request is found by leaving out more and more of it."""
    sent = run_trial(Lessons(), PROMPT, 400, 422, 413, 400, 400)
    assert sent == [PROMPT, PROMPT & ~A.FORM, A.SYSTEM | A.HISTORY, A.HISTORY, NOTHING]


@pytest.mark.parametrize("status", [400, 404, 500])
def test_what_was_refused_is_left_out_for_a_while(status: int) -> None:
    """The next request leaves it out; then it is tried again."""
    lessons = Lessons()
    run_trial(lessons, A.TEMPERATURE | A.SYSTEM, status, 200)
    refused = A.TEMPERATURE if status == 400 else A.TEMPERATURE | A.SYSTEM
    wait_s = MAX_WAIT_S if status == 400 else FIRST_WAIT_S
    assert lessons.list_left_out(wait_s - 1) == refused
    (first,) = run_trial(lessons, A.TEMPERATURE | A.SYSTEM, 200, now=wait_s)
    assert first & A.TEMPERATURE  # one is put back
    (second,) = run_trial(lessons, A.TEMPERATURE | A.SYSTEM, 200, now=wait_s)
    assert second == A.TEMPERATURE | A.SYSTEM
    assert lessons.list_left_out(wait_s) is NOTHING


def test_put_back_and_refused_again() -> None:
    """What is refused again alone costs one extra call, and waits twice as long."""
    lessons = Lessons()
    run_trial(lessons, PROMPT, 500, 200)
    assert run_trial(lessons, PROMPT, 200, now=1.0) == [A.FORM | A.HISTORY]
    tried = run_trial(lessons, PROMPT, 500, 200, now=60.0)
    assert tried == [A.TOOL | A.FORM | A.HISTORY, A.FORM | A.HISTORY]
    assert lessons.list_left_out(61.0) == A.TOOL
    assert lessons.list_left_out(179.0) == A.TOOL


def test_an_outage() -> None:
    """It costs one call more, and then none for a while; what was accepted once is not doubted."""
    lessons = Lessons()
    assert len(run_trial(lessons, CALL, 500, 500, 500)) == 2
    assert len(run_trial(lessons, CALL, 502, 502, now=59.0)) == 1
    assert len(run_trial(lessons, CALL, 502, 502, now=60.0)) == 2
    assert len(run_trial(lessons, CALL, 502, 502, now=179.0)) == 1
    assert len(run_trial(lessons, CALL, 200, now=180.0)) == 1
    assert len(run_trial(lessons, CALL, 500, 500, now=9e9)) == 1
    assert lessons.list_left_out(9e9) is NOTHING


def test_one_odd_picture() -> None:
    """A picture that cannot be fetched is left out, and nothing is remembered of it."""
    lessons = Lessons()
    run_trial(lessons, A.PICTURES | A.SYSTEM, 200)
    for status in (400, 500):
        sent = run_trial(lessons, A.PICTURES | A.SYSTEM, status, 200)
        assert len(sent) == 2
        assert not sent[1] & A.PICTURES
    assert lessons.list_left_out(0.0) is NOTHING


def test_refused_after_it_was_accepted() -> None:
    """It may be the content of this one request. Twice in a row it is not."""
    lessons = Lessons()
    run_trial(lessons, A.LIMIT | A.SYSTEM, 200)
    assert run_trial(lessons, A.LIMIT | A.SYSTEM, 400, 200)[1] == A.SYSTEM
    assert lessons.list_left_out(0.0) is NOTHING
    run_trial(lessons, A.LIMIT | A.SYSTEM, 400, 200)
    assert lessons.list_left_out(0.0) == A.LIMIT


def test_a_prompt_that_is_too_long() -> None:
    """Only what makes room is taken back, and the tool is not blamed."""
    lessons = Lessons()
    trial = Trial(lessons, PROMPT | CALL, float)
    assert trial.take_back(400, is_too_long=True) is A.TOOL
    assert trial.take_back(400, is_too_long=True) is A.LIMIT
    assert trial.take_back(400, is_too_long=True) is NOTHING
    trial = Trial(lessons, PROMPT, float)
    trial.take_back(400, is_too_long=True)
    trial.end(200)
    assert lessons.list_left_out(0.0) is NOTHING
