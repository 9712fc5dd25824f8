"""How turns that overlap come together."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.memory.model import Item, Memory
from om_proxy.memory.prompt.tail import build_tail
from om_proxy.memory.transcript.rebase_turn import keeps_numbers, rebase_turn
from om_proxy.memory.transcript.reconcile import Hints, History
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.verdict import Verdict
from tests.memory.clients import (
    Thread,
    apply_turn,
    build_covered_thread,
    build_thread,
    chat,
    forwarded_words,
    message,
    parse,
    render_live_words,
    reply,
    word,
)

LONG = "u1 a1 u2 a2 u3 a3"


def open_turn(thread: Thread, sent: str, hints: Hints = Hints()) -> tuple[Verdict, SentHistory]:
    request = thread.read_sent(chat(sent))
    return thread.reconcile(request, hints), request


def closed(memory: Memory, verdict: Verdict, sent: SentHistory, text: str) -> Memory:
    again = rebase_turn(memory, verdict, sent)
    assert again is not None
    return apply_turn(memory, again, sent, {}, 9.0, answer(text), 1)


def answer(text: str) -> Item:
    return parse(reply(text))


def live(memory: Memory) -> str:
    return " ".join(word(m.item.raw) for m in memory.tail)


def test_nothing_came_between() -> None:
    """The turn is what it was."""
    thread = build_thread("u1 a1")
    verdict, sent = open_turn(thread, "u1 a1 u2")
    assert rebase_turn(thread.memory, verdict, sent) is verdict


@pytest.mark.parametrize(
    ("stored", "one", "other", "after"),
    [
        pytest.param(
            "u1 a1", "u1 a1 u2", "u1 a1 u3", "u1 a1 u2 aA u3 aB", id="two questions at once"
        ),
        pytest.param(
            "u1 a1", "u1 a1 u2", "u1 a1 u2", "u1 a1 u2 aB", id="a retry while the first runs"
        ),
        pytest.param(
            "u1 a1 u2", "u1 a1 u2", "u1 a1 u2", "u1 a1 u2 aB", id="an unanswered request, twice"
        ),
        pytest.param(
            "u1 a1", "u1 a1 u2", "u2", "u1 a1 u2 aB", id="the same question, shown in two ways"
        ),
        pytest.param(
            "u1 a1",
            "u1 a1 u2",
            "u1 a1 u2 a9 u3",
            "u1 a1 u2 aA a9 u3 aB",
            id="the next one came too early",
        ),
        pytest.param(
            LONG,
            "u1 a1 u2 a2 u3 a3 u4",
            "u1 a1 u5",
            LONG + " u4 aA u5 aB",
            id="an edit that had not seen it",
        ),
        pytest.param("u1 a1", "u5", "u6", "u1 a1 u5 aA u6 aB", id="two devices"),
    ],
)
def test_turns_that_overlap(stored: str, one: str, other: str, after: str) -> None:
    """The second commits on top of the first: nothing of the first is superseded, nothing is stored
    twice."""
    thread = build_thread(stored)
    first, second = open_turn(thread, one), open_turn(thread, other)
    memory = apply_turn(thread.memory, *first, {}, 8.0, answer("A"), 1)
    memory = closed(memory, *second, "B")
    assert live(memory) == after
    assert [m.seq for m in memory.tail] == sorted({m.seq for m in memory.tail})


@pytest.mark.parametrize(
    ("asked_at", "is_compared_anew"), [(9.0, True), (7.0, False), (0.0, False)]
)
@pytest.mark.parametrize("text", ["u1 a1 u5", LONG + " u5", "u5"])
def test_a_request_beside_a_turn_that_was_stored_late(
    text: str, asked_at: float, is_compared_anew: bool
) -> None:
    """What had ended before the request came is no turn beside it, wherever it waited: the client
    may have taken it back."""
    thread = build_thread(LONG)
    waiting, request = open_turn(thread, LONG + " u4"), open_turn(thread, text)
    memory = apply_turn(thread.memory, *waiting, {}, 8.0, answer("A"), 1)
    rebased = rebase_turn(memory, *request, asked_at)
    assert (rebased is None) is is_compared_anew


def test_a_question_that_still_waits_for_its_reply_is_a_turn_beside() -> None:
    """It was stored ahead of its reply, after this request was compared: nobody has taken it
    back."""
    thread = build_thread("u1 a1")
    waiting, request = open_turn(thread, "u1 a1 u4"), open_turn(thread, "u1 a1 u5")
    memory = apply_turn(thread.memory, *waiting, {}, 8.0)
    rebased = rebase_turn(memory, *request, asked_at=9.0)
    assert rebased is not None
    assert not rebased.forks


def test_numbers_of_messages_that_waited() -> None:
    """They are good as long as the newest of them has its own."""
    thread = build_thread("u1 a1")
    waiting = replace(build_thread("u1 a1 u2 a2").memory, version=-1)
    merged = build_thread("u1 a1 u3 a3 u2 a2").memory
    assert keeps_numbers(build_thread("u1 a1 u2 a2 u3 a3").memory, waiting)
    assert not keeps_numbers(merged, waiting)
    assert not keeps_numbers(thread.memory, waiting)
    assert keeps_numbers(merged, replace(waiting, version=1))  # a stored number is never used again


def test_the_ground_is_gone() -> None:
    """A turn is reconciled again if an earlier commit took back what it stood on."""
    thread = build_thread("u1 a1")
    first, second = open_turn(thread, "u1"), open_turn(thread, "u1 a1 u2")
    memory = apply_turn(thread.memory, *first, {}, 8.0, answer("A"), 1)
    assert rebase_turn(memory, *second) is None


def test_two_regenerations_leave_one_reply() -> None:
    """The second finds the first's reply in its place, and replaces it."""
    thread = build_thread("u1 a1")
    first, second = open_turn(thread, "u1"), open_turn(thread, "u1")
    thread.commit(apply_turn(thread.memory, *first, {}, 8.0, answer("A"), 1))
    assert rebase_turn(thread.memory, *second) is None
    thread.turn(chat("u1"), reply("B"))
    assert render_live_words(thread) == "u1 aB"


def test_a_late_reply_to_a_turn_that_went_on_is_not_recorded() -> None:
    """The retried request was answered and the user wrote on; a second answer has no place any
    more."""
    thread = build_thread("u1 a1")
    second = open_turn(thread, "u1 a1 u2")
    thread.turn(chat("u1 a1 u2"), reply("A"))
    thread.turn(chat("u1 a1 u2 aA u3"), reply("3"))
    again = rebase_turn(thread.memory, *second)
    assert again is not None
    assert again.has_stored_reply
    after = apply_turn(thread.memory, again, second[1], {}, 9.0, answer("B"), 1)
    assert live(after) == "u1 a1 u2 aA u3 a3"
    assert after.views == thread.memory.views


def test_a_request_whose_turn_went_on_while_it_waited_shows_itself() -> None:
    """Its prompt is its own view, not that of the newest request."""
    thread = build_covered_thread("u1 a1", 2)
    waiting, sent = open_turn(thread, "u1 a1 u2")
    thread.turn(chat("u1 a1 u2"), reply("A"))
    thread.turn(chat("u1 a1 u2 aA u3"), reply("3"))
    again = rebase_turn(thread.memory, waiting, sent)
    assert again is not None
    assert again.has_stored_reply
    projected = thread.projected(again, sent)
    assert forwarded_words(build_tail(projected, sent)) == "u2"
    assert projected.views[-1].reply == 4  # it stays answered, whatever becomes of this attempt


NEW, AGAIN = Hints(history="new"), Hints(history="new", sdk_retry=True)


def behind_another() -> tuple[Thread, tuple[Verdict, SentHistory]]:
    """u2 is asked again because its reply was lost, u3 is stored ahead of its own, and the second
    reply to u2 comes first: the thread as it stands then, and the turn of u3 as it was opened
    before."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u2"), reply("2"), NEW)
    again = open_turn(thread, "u2", AGAIN)
    thread.turn(chat("u3"), None, NEW)
    waiting = open_turn(thread, "u3", NEW)
    assert (again[0].case, waiting[0].case) == ("retry", "retry")
    thread.commit(closed(thread.memory, *again, "A"))
    assert render_live_words(thread) == "u1 a1 u2 a2 u3 aA"
    return thread, waiting


def test_a_reply_that_came_behind_another_question_is_not_its_answer() -> None:
    """Both stand right behind u3, and only one is its reply: the other one's stays."""
    thread, waiting = behind_another()
    assert live(closed(thread.memory, *waiting, "B")) == "u1 a1 u2 a2 u3 aA aB"


@pytest.mark.parametrize("text", ["u2", "u3"])
def test_a_retry_behind_others_takes_back_its_own_reply_alone(text: str) -> None:
    """A retry does not supersede what others said before its reply came."""
    thread, waiting = behind_another()
    if text == "u3":
        thread.commit(closed(thread.memory, *waiting, "B"))
    before = render_live_words(thread)
    thread.turn(chat(text), reply("C"), AGAIN)
    assert render_live_words(thread) == before.rpartition(" ")[0] + " aC"


def test_two_retries_behind_others_leave_one_reply() -> None:
    """Both were overtaken by another question; the later one's reply replaces the earlier one's,
    and nothing else."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u2"), reply("2"), NEW)
    first, second = open_turn(thread, "u2", AGAIN), open_turn(thread, "u2", AGAIN)
    thread.turn(chat("u3"), None, NEW)
    thread.commit(closed(thread.memory, *first, "A"))
    assert live(closed(thread.memory, *second, "B")) == "u1 a1 u2 a2 u3 aB"


def test_two_that_edit_alike_behind_others_are_one() -> None:
    """The edit was asked twice, and another tab's turn came first: it stands behind that once, with
    the later reply."""
    thread = build_thread("u1 a1 u2 a2")
    first, second, other = (
        open_turn(thread, "u1 a1 u4"),
        open_turn(thread, "u1 a1 u4"),
        open_turn(thread, "u1 a1 u2 a2 u3"),
    )
    thread.commit(closed(thread.memory, *other, "3"))
    thread.commit(closed(thread.memory, *first, "A"))
    assert live(closed(thread.memory, *second, "B")) == "u1 a1 u2 a2 u3 a3 u4 aB"


def test_a_result_that_came_meanwhile_stays() -> None:
    """A question and another client's tool result wait side by side: the reply to the question
    takes nothing of it back."""
    thread = build_thread("u1 cx")
    thread.turn(chat("u2"), None, NEW)
    waiting = open_turn(thread, "u2", NEW)
    thread.turn(chat("rx"), None, NEW)
    assert live(closed(thread.memory, *waiting, "A")) == "u1 cx u2 rx aA"


def test_a_reply_nobody_has_shown_is_no_reason_to_drop_the_next_one() -> None:
    """The first reply was lost on its way and others spoke since: the client that asked again has
    the second one alone."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u2"), None, NEW)
    second = open_turn(thread, "u2", NEW)
    thread.turn(chat("u2"), reply("A"), NEW)
    thread.turn(chat("u3"), reply("3"), NEW)
    again = rebase_turn(thread.memory, *second)
    assert again is not None
    pieces = build_tail(thread.projected(again, second[1]), second[1])
    assert forwarded_words(pieces) == "[u1] [a1] [u3] [a3] u2"
    assert live(closed(thread.memory, *second, "B")) == "u1 a1 u2 aA u3 a3 aB"


def test_a_reply_that_stands_is_not_recorded_again_behind_others() -> None:
    """A commit was written, its confirmation was lost, others spoke, and it is tried again."""
    thread = build_thread("u1 a1")
    first = open_turn(thread, "u2", NEW)
    thread.commit(closed(thread.memory, *first, "A"))
    thread.turn(chat("u3"), reply("3"), NEW)
    after = closed(thread.memory, *first, "A")
    assert live(after) == "u1 a1 u2 aA u3 a3"
    assert (after.views, after.turns) == (thread.memory.views, thread.memory.turns)


@pytest.mark.parametrize("shown", ["rx", "u1 a1 u2 cx rx"])
def test_a_late_reply_to_calls_that_have_their_results_is_not_recorded(shown: str) -> None:
    """The client has gone on with the first reply, whether it shows the calls or their results
    alone."""
    thread = build_thread("u1 a1")
    second = open_turn(thread, "u1 a1 u2")
    thread.turn(chat("u1 a1 u2"), message("c", "x"))
    thread.turn(chat(shown), None)
    assert live(closed(thread.memory, *second, "B")) == "u1 a1 u2 cx rx"


def test_a_reply_that_its_client_has_stored_already_is_not_recorded_again() -> None:
    """A commit was held up until the next turn had brought the question and its reply as well."""
    thread = build_thread("u1 a1")
    late = open_turn(thread, "u1 a1 u2")
    thread.turn(chat("u1 a1 u2 aA u3"), reply("3"))
    assert live(closed(thread.memory, *late, "A")) == "u1 a1 u2 aA u3 a3"


def test_a_reply_that_no_attempt_accounts_for_is_never_superseded() -> None:
    """Another question's reply, its attempt forgotten, right behind a question that waits: its
    place is no proof of what it answers."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u2"), None, NEW)
    other = open_turn(thread, "u2", NEW)
    thread.turn(chat("u3"), None, NEW)
    waiting = open_turn(thread, "u3", NEW)
    thread.commit(closed(thread.memory, *other, "2"))
    thread.memory = replace(thread.memory, views=())
    assert live(closed(thread.memory, *waiting, "3")) == "u1 a1 u2 u3 a2 a3"


def test_what_others_said_in_turns_that_overlap_twice_stays_in_the_prompt() -> None:
    """Others speak once and again while a question waits: all of it is shown, in its order, before
    what is asked."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u2"), None, NEW)
    verdict, sent = open_turn(thread, "u2", NEW)
    for text in ("3", "4"):
        thread.turn(chat(f"u{text}"), reply(text), NEW)
        again = rebase_turn(thread.memory, verdict, sent)
        assert again is not None
        verdict = again
    pieces = build_tail(thread.projected(verdict, sent), sent)
    assert forwarded_words(pieces) == "[u1] [a1] [u3] [a3] [u4] [a4] u2"


def test_the_next_request_of_a_reminding_client_whose_reply_came_behind_others() -> None:
    """Its attempt ends where others spoke; without its reminder it is a prefix all the same, and is
    told once."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u1 a1 u2 s0"), None)
    waiting = open_turn(thread, "u1 a1 u2 s0")
    thread.turn(chat("u3"), reply("3"), NEW)
    thread.commit(closed(thread.memory, *waiting, "2"))
    assert forwarded_words(thread.ask(chat("u1 a1 u2 a2 u4 s0"))[2]) == "u1 a1 u2 a2 u4 s0"
    thread.turn(chat("u1 a1 u2 a2 u4 s0"), reply("4"))
    assert render_live_words(thread) == "u1 a1 u2 s0 u3 a3 a2 u4 a4"


def test_background_work_in_between_changes_nothing() -> None:
    """Coverage may move while a turn runs: what it means stays."""
    thread = build_thread(LONG)
    verdict, sent = open_turn(thread, LONG + " u4")
    thread.observe(4)
    thread.activate(1)
    memory = closed(thread.memory, verdict, sent, "4")
    assert live(memory) == "u3 a3 u4 a4"


@pytest.mark.parametrize("history", ["auto", "full"])
def test_a_text_that_was_noted_meanwhile_is_corrected_and_not_replaced(history: History) -> None:
    """Else the turn's record said that the new text was noted, and no prompt told it."""
    thread = build_thread(LONG)
    hints = Hints(history)
    verdict, sent = open_turn(thread, "u1 aX u2 a2 u3 a3 u4", hints)
    assert verdict.swaps
    thread.observe(4)
    assert rebase_turn(thread.memory, verdict, sent) is None
    thread.close(thread.reconcile(sent, hints), sent, reply("4"))
    _, _, pieces = thread.ask(chat("u1 aX u2 a2 u3 a3 u4 a4 u5"), hints)
    assert "aX" in forwarded_words(pieces)
    assert "aX" in render_live_words(thread)
