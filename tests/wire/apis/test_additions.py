"""What is taken back after a refusal, and what is learnt from it."""

from __future__ import annotations

import pytest

from om_proxy.wire.apis.additions import (
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


@pytest.mark.parametrize(
    ("status", "is_refusal"),
    [
        *((status, True) for status in (400, 404, 413, 422)),
        *((status, False) for status in (408, 429, 500, 503, 529)),
    ],
)
def test_a_server_that_says_when_to_come_back(status: int, is_refusal: bool) -> None:
    """It is busy, unless the status is about the request."""
    taken = Trial(Lessons(), CALL, float).take_back(status, has_retry_after=True)
    assert (taken is not NOTHING) is is_refusal


def test_one_after_the_other() -> None:
    """What a server says is wrong with a request is found by leaving out more and more of it."""
    sent = run_trial(Lessons(), PROMPT, 400, 422, 413, 400, 400)
    assert sent == [PROMPT, PROMPT & ~A.FORM, A.SYSTEM | A.HISTORY, A.HISTORY, NOTHING]


@pytest.mark.parametrize("status", [404, 500, 503])
def test_one_status_and_then_another(status: int) -> None:
    """A gateway may answer for the tool in one way, and its model's template for a system message in
    another. What may be an outage costs one call, whatever was taken back before it."""
    lessons = Lessons()
    sent = run_trial(lessons, PROMPT, 400, 400, status, 200)
    assert sent == [PROMPT, PROMPT & ~A.FORM, A.SYSTEM | A.HISTORY, NOTHING]
    assert run_trial(lessons, PROMPT, 200, now=1.0) == [A.HISTORY]
    assert len(run_trial(Lessons(), CALL, status, status, 200)) == 2
    assert len(run_trial(Lessons(), CALL, 400, status, status, 200)) == 3


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
    prompt = PROMPT & ~A.FORM
    run_trial(lessons, prompt, 500, 200)
    assert run_trial(lessons, prompt, 200, now=1.0) == [A.HISTORY]
    tried = run_trial(lessons, prompt, 500, 200, now=60.0)
    assert tried == [A.TOOL | A.HISTORY, A.HISTORY]
    assert lessons.list_left_out(61.0) == A.TOOL
    assert lessons.list_left_out(179.0) == A.TOOL


def test_an_outage() -> None:
    """It costs one call more, and then none for a while, whatever was accepted before."""
    lessons = Lessons()
    assert len(run_trial(lessons, CALL, 500, 500, 500)) == 2
    assert len(run_trial(lessons, CALL, 502, 502, now=59.0)) == 1
    assert len(run_trial(lessons, CALL, 502, 502, now=60.0)) == 2
    assert len(run_trial(lessons, CALL, 502, 502, now=179.0)) == 1
    assert len(run_trial(lessons, CALL, 200, now=180.0)) == 1
    assert len(run_trial(lessons, CALL, 500, 500, now=190.0)) == 2
    assert len(run_trial(lessons, CALL, 200, now=191.0)) == 1
    assert (
        len(run_trial(lessons, CALL, 500, 500, now=249.0)) == 1
    )  # a server that fails now and then
    assert len(run_trial(lessons, CALL, 500, 500, now=250.0)) == 2
    assert lessons.list_left_out(250.0) is NOTHING


def test_an_outage_for_many_requests_at_once() -> None:
    """What was accepted is doubted by one of them."""
    lessons = Lessons()
    run_trial(lessons, PROMPT, 200)
    trials = [Trial(lessons, PROMPT, float) for _ in range(3)]
    assert [trial.take_back(500) for trial in trials] == [PROMPT, NOTHING, NOTHING]


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_changed(status: int) -> None:
    """What it accepted once is doubted, too: each request costs one call more, and twice in a row
    all is left out for a while."""
    lessons = Lessons()
    run_trial(lessons, PROMPT, 200)
    for now in (0.0, 1.0):
        assert lessons.list_left_out(now) is NOTHING
        assert run_trial(lessons, PROMPT, status, 200, now=now) == [PROMPT, NOTHING]
    assert run_trial(lessons, PROMPT, 200, now=2.0) == [A.HISTORY]
    assert run_trial(lessons, PROMPT, status, 200, now=61.0) == [A.FORM | A.HISTORY, A.HISTORY]


def test_content_that_fails_between_others() -> None:
    """Where the call without it is accepted each time, it is made each time."""
    lessons = Lessons()
    for now in range(5):
        run_trial(lessons, PROMPT, 200, now=now)
        assert run_trial(lessons, PROMPT, 500, 200, now=now) == [PROMPT, NOTHING]


def test_a_doubt_after_a_fruitless_trial() -> None:
    """What was new was not the cause, so all is taken back the next time."""
    lessons = Lessons()
    run_trial(lessons, A.TOOL, 200)
    assert run_trial(lessons, PROMPT, 500, 500) == [PROMPT, A.TOOL]
    assert run_trial(lessons, PROMPT, 500, 200, now=60.0) == [PROMPT, NOTHING]


def test_a_template_that_changed() -> None:
    """What was accepted before, and depends on no content, is doubted before the original is sent,
    unless nothing helped lately."""
    lessons = Lessons()
    run_trial(lessons, PROMPT, 200)
    assert run_trial(lessons, PROMPT, 400, 400, 400, 200)[-1] == A.HISTORY
    assert run_trial(lessons, PROMPT, 400, 200) == [PROMPT, PROMPT & ~A.SYSTEM]
    assert lessons.list_left_out(MAX_WAIT_S - 1) == A.SYSTEM
    lessons = Lessons()
    run_trial(lessons, A.SYSTEM | A.TEMPERATURE | A.LIMIT, 200)
    sent = run_trial(lessons, A.SYSTEM | A.TEMPERATURE | A.LIMIT, 400, 400, 400)
    assert sent[1:] == [A.SYSTEM | A.TEMPERATURE, NOTHING]
    assert len(run_trial(lessons, A.SYSTEM | A.TEMPERATURE | A.LIMIT, 400, 400, 400)) == 2


def test_a_form_is_remembered() -> None:
    """It is put back after its time: it may have been one message."""
    lessons = Lessons()
    assert run_trial(lessons, PROMPT, 400, 200) == [PROMPT, PROMPT & ~A.FORM]
    assert run_trial(lessons, PROMPT, 200, now=1.0) == [PROMPT & ~A.FORM]
    assert run_trial(lessons, PROMPT, 200, now=MAX_WAIT_S) == [PROMPT]
    assert lessons.list_left_out(MAX_WAIT_S) is NOTHING
    run_trial(lessons, PROMPT, 400, 200, now=MAX_WAIT_S)
    assert lessons.list_left_out(MAX_WAIT_S) is NOTHING  # it was accepted before


def test_what_changed_nothing() -> None:
    """An addition without which the request is the same is not to blame."""
    lessons = Lessons()
    trial = Trial(lessons, PROMPT, float)
    assert trial.take_back(400) is A.FORM
    trial.acquit(A.FORM)
    assert trial.take_back(400) is A.TOOL
    trial.end(200)
    assert lessons.list_left_out(0.0) == A.TOOL


def test_what_is_in_doubt() -> None:
    """An answer needs a look only where the server may refuse the request for the first time."""
    lessons = Lessons()
    trial = Trial(lessons, PROMPT, float)
    assert trial.is_in_doubt
    trial.end(200)
    assert not Trial(lessons, PROMPT, float).is_in_doubt
    assert not Trial(lessons, A.TOOL, float).is_in_doubt
    assert not Trial(Lessons(), NOTHING, float).is_in_doubt
    trial = Trial(lessons, PROMPT, float)
    trial.take_back(500)
    assert trial.is_in_doubt


def test_rounds_that_are_refused() -> None:
    """Two in a row teach that the server takes the tool, and not what comes of it."""
    lessons = Lessons()
    run_trial(lessons, PROMPT, 200)
    trial = Trial(lessons, PROMPT, float)
    for is_accepted in (False, True, False):
        trial.count_round(is_accepted=is_accepted)
    assert lessons.list_left_out(0.0) is NOTHING
    trial.count_round(is_accepted=False)
    assert lessons.list_left_out(MAX_WAIT_S - 1) == A.TOOL
    assert lessons.list_left_out(MAX_WAIT_S) is NOTHING


def test_rounds_of_which_the_form_is_refused() -> None:
    """After two in a row they are plain at once for a while."""
    lessons = Lessons()
    for is_accepted in (False, True, False):
        lessons.count_form(0.0, is_accepted=is_accepted)
    assert not lessons.has_plain_rounds(0.0)
    trial = Trial(lessons, PROMPT, float)
    trial.count_form(is_accepted=False)
    assert trial.has_plain_rounds
    assert not lessons.has_plain_rounds(MAX_WAIT_S)


def test_pictures_have_lessons_of_their_own() -> None:
    """What is refused beside a picture is left out of no other request."""
    lessons = Lessons()
    run_trial(lessons, PROMPT, 200)
    trial = Trial(lessons, PROMPT, float)
    trial.move_to_pictures()
    assert trial.take_back(400) is A.FORM
    assert trial.take_back(400) is A.TOOL
    trial.end(200)
    assert lessons.list_left_out(0.0) is NOTHING
    assert lessons.with_pictures is not None
    assert lessons.with_pictures.list_left_out(0.0) & A.TOOL


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
