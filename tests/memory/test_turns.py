"""What a reconciled turn does to the memory, what the actor is sent of it, and how turns that overlap come together."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.memory.model import MAX_VIEWS, Item, Memory, Reflection, chained
from om_proxy.memory.tail import Piece, forwarded
from om_proxy.memory.transcript import Hints, Known, Reconciled, Sent, reconcile
from om_proxy.memory.turns import heard, merged
from tests.memory.clients import Thread, chat, message, parse, raw, told, transcript, word

LONG = "u1 a1 u2 a2 u3 a3"


def reply(text: str) -> bytes:
    return raw("assistant", text)


def covered(words: str, observed: int, chunked: int = 0) -> Thread:
    """Told, then the first `observed` messages in the log and the next `chunked` in a chunk."""
    thread = told(words)
    thread.observe(observed)
    thread.activate(1)
    if chunked:
        thread.observe(chunked)
    return thread


# ── heard ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_is_numbered_chained_and_remembered() -> None:
    """New messages and the reply get the next numbers; the view says where the request stands and what answered it."""
    thread = told("u1 a1")
    thread.turn(chat("u1 a1 u2"), reply("2"))
    memory = thread.memory
    assert [m.seq for m in memory.tail] == [1, 2, 3, 4]
    assert (memory.next_seq, memory.turns, memory.style) == (5, 2, "full")
    chain = bytes(16)
    for m in memory.tail:
        chain = chained(chain, m.item.fp)
        assert m.chain == chain
    view = memory.views[-1]
    assert (view.count, view.seq, view.reply, view.end) == (3, 3, 4, 2)
    assert [tuple(cell) for cell in view.cells] == [("same", 0, 3, 1, 3)]


def test_what_moves_is_not_dated_by_that() -> None:
    """Messages that came without times get new numbers where something is inserted before them. That they moved says nothing of when
    they were said; the turn they came with keeps its time."""
    thread = Thread()
    thread.turn(chat("u1 a1 u2 a2 u3 a3 u4"), reply("4"))
    thread.turn(chat("u1 a1 u8 a8 u2 a2 u3 a3 u4 a4 u5"), reply("5"))
    memory = thread.memory
    words = [word(m.item.raw) for m in memory.tail]
    undated = [w for m, w in zip(memory.tail, words, strict=True) if m.seq <= memory.undated_to]
    assert undated[-1] == "a3", words


@pytest.mark.parametrize(
    ("first", "undated"),
    [("u1", 0), ("u1 a1 u2", 2), ("u1 a1 u2 a2 u3", 4), ("a1 u1", 1), ("u1 u2", 0), ("u1 a1 u2 u3", 2), ("a1", 0)],
)
def test_what_came_together_has_no_times(first: str, undated: int) -> None:
    """Of a thread's first request all but its newest turn was said at some time before; later requests change nothing of that."""
    thread = Thread()
    thread.turn(chat(first), None)
    assert thread.memory.undated_to == undated
    thread.turn(chat(first), reply("answered"))
    thread.turn(chat(f"{first} a7 u8 a8 u9"), reply("9"))
    assert thread.memory.undated_to == undated


def test_a_failed_turn_stays_unanswered_and_is_answered_in_place() -> None:
    """Upstream failed: the message is kept; the same request again adds the reply and nothing else."""
    thread = told("u1 a1")
    thread.turn(chat("u1 a1 u2"), None)
    assert (transcript(thread), thread.memory.views[-1].reply, thread.memory.turns) == ("u1 a1 u2", 0, 1)
    rec = thread.turn(chat("u1 a1 u2"), reply("2"))
    assert (rec.case, transcript(thread)) == ("retry", "u1 a1 u2 a2")
    assert len(thread.memory.views) == 2
    assert thread.memory.views[-1].reply == 4


def test_a_retry_is_no_turn_of_its_own() -> None:
    """Two replies to one request count once."""
    thread = told("u1 a1 u2 a2")
    turns = thread.memory.turns
    thread.turn(chat("u1 a1 u2"), reply("other"))
    assert thread.memory.turns == turns


def test_an_altered_text_replaces_ours() -> None:
    """While nobody observed it; the chain behind it follows."""
    thread = told("u1 a1")
    thread.turn(chat("u1 aX u2"), reply("2"))
    assert transcript(thread) == "u1 aX u2 a2"
    assert thread.memory.tail[2].chain == chained(thread.memory.tail[1].chain, parse(message("u", "2")).fp)
    assert thread.memory.views[-1].cells[0].kind == "same"


@pytest.mark.parametrize(("observed", "chunked"), [(2, 0), (0, 2)])
def test_an_altered_text_never_replaces_what_is_observed(observed: int, chunked: int) -> None:
    """What stands in the log or in a chunk keeps the text it was made from; the client's is forwarded."""
    thread = told("u1 a1 u2 a2")
    thread.observe(observed or chunked)
    thread.activate(1 if observed else 0)
    _, sent, pieces = thread.ask(chat("u1 aX u2 a2 u3"))
    thread.turn(list(sent.raws), reply("3"))
    assert transcript(thread) == "u1 a1 u2 a2 u3 a3"
    assert ("aX" in [word(p.raw) for p in pieces]) == (not observed)


def test_a_range_being_observed_is_fixed_too() -> None:
    """An observation under way reads the text as it stands; nothing changes under it."""
    thread = told("u1 a1")
    sent = thread.sent(chat("u1 aX u2"))
    rec = reconcile(Known.of(thread.memory, fixed=2), sent)
    assert isinstance(rec, Reconciled)
    assert (rec.case, rec.swaps) == ("altered_reply", ())


def test_the_clients_spelling_replaces_our_reconstruction() -> None:
    """Equal by fingerprint, other bytes: unknown keys matter to whoever sent them."""
    thread = told("u1 a1")
    spelled = raw("assistant", "1", reasoning_content="hm")
    thread.turn([message("u", "1"), spelled, message("u", "2")], reply("2"))
    assert thread.memory.tail[1].item.raw == spelled
    assert transcript(thread) == "u1 a1 u2 a2"


def test_a_fork_drops_what_was_made_of_it() -> None:
    """Chunks before the fork stay, chunks that reach beyond it go."""
    thread = told(LONG)
    thread.observe(2)
    thread.observe(2)
    kept = thread.memory.chunks[0]
    thread.turn(chat("u1 a1 u4"), reply("4"))
    assert thread.memory.chunks == (kept,)
    assert transcript(thread) == "u1 a1 u4 a4"


def test_a_pending_reflection_survives_a_fork_behind_its_range() -> None:
    """Its sources are all still in the log."""
    thread = covered(LONG, 2)
    pending = Reflection(
        generation=0, sources=(thread.memory.log[0].id,), text="* 🔴", tokens=1, source_tokens=5, at=0.0
    )
    thread.memory = replace(thread.memory, reflection=pending)
    thread.turn(chat("u1 a1 u4"), reply("4"))
    assert thread.memory.reflection == pending


def test_what_only_moves_keeps_its_time() -> None:
    """Adopting an insertion renumbers what follows it; it was first seen when it was first seen."""
    thread = told("u1 u2 a2")
    before = {m.item.fp: m.at for m in thread.memory.tail}
    thread.turn(chat("u1 a1 u2 a2 u3"), reply("3"))
    after = {m.item.fp: m.at for m in thread.memory.tail}
    fp = parse(message("u", "2")).fp
    assert after[fp] == before[fp]
    assert after[parse(message("a", "1")).fp] > before[fp]


def test_views_are_bounded_and_questions_outlive_steps() -> None:
    """People come back to their own messages: of a long run of tool steps the attempts inside go first."""
    thread = told("u1 a1 u2 a2 u3")
    so_far = chat("u1 a1 u2 a2 u3")
    for step in range(12):
        so_far += [message("c", f"c{step}"), message("r", f"c{step}")]
        thread.turn(so_far, message("c", f"c{step + 1}"))
    views = thread.memory.views
    assert len(views) == MAX_VIEWS
    assert [v.count for v in views][:3] == [1, 3, 5]
    assert views[-1].count == len(so_far)


# ── the tail ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def ask(thread: Thread, words: str) -> tuple[Piece, ...]:
    return thread.ask(chat(words))[2]


def words(pieces: tuple[Piece, ...]) -> str:
    """What is forwarded, in words; what comes from the store in brackets."""
    return " ".join(word(p.raw) if p.sent else f"[{word(p.raw)}]" for p in pieces)


@pytest.mark.parametrize(
    ("thread", "sent", "forwarded"),
    [
        pytest.param(told(LONG), LONG + " u4", LONG + " u4", id="nothing covered: as sent"),
        pytest.param(covered(LONG, 4), LONG + " u4", "u3 a3 u4", id="covered is skipped"),
        pytest.param(told(LONG), "a3 u4", "[u1] [a1] [u2] [a2] [u3] a3 u4", id="what a window lacks is ours"),
        pytest.param(covered(LONG, 2), "a3 u4", "[u2] [a2] [u3] a3 u4", id="from coverage on"),
        pytest.param(covered(LONG, 2), "u4", "[u2] [a2] [u3] [a3] u4", id="a lone message"),
        pytest.param(covered(LONG, 2), "usum u3 a3 u4", "usum [u2] [a2] u3 a3 u4", id="an unknown head goes first"),
        pytest.param(told("u1 cx rx a1"), "u1 a1 u2", "u1 a1 u2", id="folded: the client's view"),
        pytest.param(covered("u1 cx rx cy ry a1", 3), "u1 a1 u2", "[cy] [ry] a1 u2", id="coverage inside a fold: ours"),
        pytest.param(told(LONG), "u1 a1 u3 a3 u4", "u1 a1 u3 a3 u4", id="a gap is not refilled"),
        pytest.param(told("u1 cx rx a1"), "u1 cx rx=pruned a1 u2", "u1 cx rx a1 u2", id="a pruned result is theirs"),
        pytest.param(covered("u1 u2 a2", 3), "u1 sx u2 a2 u3", "sx u3", id="inserted where all is covered"),
        pytest.param(covered("u1 a1 u2", 3), "u1 a1 u2", "u2", id="what is asked is never left out"),
        pytest.param(told("u1 cx"), "rx", "[u1] [cx] rx", id="a lone result finds its call"),
        pytest.param(told("u1 a1 u2 a2"), "u1 a1", "u1 a1", id="a prefill is the last message"),
        pytest.param(told("u1 s0 a1"), "u1 a1 u2 s0", "u1 a1 u2 s0", id="a reminder stands where the client puts it"),
    ],
)
def test_the_tail(thread: Thread, sent: str, forwarded: str) -> None:
    """The client's view where it has one, ours where it has none, in order, the newest message last."""
    assert words(ask(thread, sent)) == forwarded


def test_a_pruned_result_is_forwarded_in_the_clients_words() -> None:
    """Ours is observed, theirs is sent, and must be counted."""
    pieces = ask(told("u1 cx rx a1"), "u1 cx rx=pruned a1 u2")
    result = next(p for p in pieces if p.answers)
    assert b"pruned" in result.raw
    assert (result.tokens, result.seq) == (None, 3)


def test_known_messages_need_no_counting() -> None:
    """Their count is stored; an unknown head has none."""
    pieces = ask(told(LONG), "usum u3 a3 u4")
    assert [p.tokens for p in pieces] == [None] + [50] * (len(pieces) - 1)
    assert [p.seq for p in pieces] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_fold_that_hides_the_call_leaves_no_orphan_of_ours() -> None:
    """A stored result goes only where its call goes."""
    thread = told("u1 cx rx a1 u2 a2")
    pieces = ask(thread, "rx a1 u2 a2 u3")
    assert words(pieces) == "[u1] [cx] rx a1 u2 a2 u3"


# ── turns that overlap ───────────────────────────────────────────────────────────────────────────────────────────────


def opened(thread: Thread, sent: str, hints: Hints = Hints()) -> tuple[Reconciled, Sent]:  # noqa: B008 - frozen
    request = thread.sent(chat(sent))
    return thread.reconcile(request, hints), request


def closed(memory: Memory, rec: Reconciled, sent: Sent, text: str) -> Memory:
    again = merged(memory, rec, sent)
    assert again is not None
    return heard(memory, again, sent, {}, 9.0, answer(text), 1)


def answer(text: str) -> Item:
    return parse(reply(text))


def live(memory: Memory) -> str:
    return " ".join(word(m.item.raw) for m in memory.tail)


def test_nothing_came_between() -> None:
    """The turn is what it was."""
    thread = told("u1 a1")
    rec, sent = opened(thread, "u1 a1 u2")
    assert merged(thread.memory, rec, sent) is rec


@pytest.mark.parametrize(
    ("stored", "one", "other", "after"),
    [
        pytest.param("u1 a1", "u1 a1 u2", "u1 a1 u3", "u1 a1 u2 aA u3 aB", id="two questions at once"),
        pytest.param("u1 a1", "u1 a1 u2", "u1 a1 u2", "u1 a1 u2 aB", id="a retry while the first runs"),
        pytest.param("u1 a1 u2", "u1 a1 u2", "u1 a1 u2", "u1 a1 u2 aB", id="an unanswered request, twice"),
        pytest.param("u1 a1", "u1 a1 u2", "u2", "u1 a1 u2 aB", id="the same question, shown in two ways"),
        pytest.param("u1 a1", "u1 a1 u2", "u1 a1 u2 a9 u3", "u1 a1 u2 aA a9 u3 aB", id="the next one came too early"),
        pytest.param(
            LONG, "u1 a1 u2 a2 u3 a3 u4", "u1 a1 u5", LONG + " u4 aA u5 aB", id="an edit that had not seen it"
        ),
        pytest.param("u1 a1", "u5", "u6", "u1 a1 u5 aA u6 aB", id="two devices"),
    ],
)
def test_turns_that_overlap(stored: str, one: str, other: str, after: str) -> None:
    """The second commits on top of the first: nothing of the first is superseded, nothing is stored twice."""
    thread = told(stored)
    first, second = opened(thread, one), opened(thread, other)
    memory = heard(thread.memory, *first, {}, 8.0, answer("A"), 1)
    memory = closed(memory, *second, "B")
    assert live(memory) == after
    assert [m.seq for m in memory.tail] == sorted({m.seq for m in memory.tail})


def test_the_ground_is_gone() -> None:
    """Whoever came first took back what this turn stood on: it must be reconciled again."""
    thread = told("u1 a1")
    first, second = opened(thread, "u1"), opened(thread, "u1 a1 u2")
    memory = heard(thread.memory, *first, {}, 8.0, answer("A"), 1)
    assert merged(memory, *second) is None


def test_two_regenerations_leave_one_reply() -> None:
    """The second finds the first's reply in its place, and replaces it."""
    thread = told("u1 a1")
    first, second = opened(thread, "u1"), opened(thread, "u1")
    thread.commit(heard(thread.memory, *first, {}, 8.0, answer("A"), 1))
    assert merged(thread.memory, *second) is None
    thread.turn(chat("u1"), reply("B"))
    assert transcript(thread) == "u1 aB"


def test_a_late_reply_to_a_turn_that_went_on_is_not_recorded() -> None:
    """The retried request was answered and the user wrote on; a second answer has no place any more."""
    thread = told("u1 a1")
    second = opened(thread, "u1 a1 u2")
    thread.turn(chat("u1 a1 u2"), reply("A"))
    thread.turn(chat("u1 a1 u2 aA u3"), reply("3"))
    again = merged(thread.memory, *second)
    assert again is not None
    assert again.answered
    after = heard(thread.memory, again, second[1], {}, 9.0, answer("B"), 1)
    assert live(after) == "u1 a1 u2 aA u3 a3"
    assert after.views == thread.memory.views


def test_a_request_whose_turn_went_on_while_it_waited_shows_itself() -> None:
    """Its prompt is its own view, not that of the newest request."""
    thread = covered("u1 a1", 2)
    waiting, sent = opened(thread, "u1 a1 u2")
    thread.turn(chat("u1 a1 u2"), reply("A"))
    thread.turn(chat("u1 a1 u2 aA u3"), reply("3"))
    again = merged(thread.memory, waiting, sent)
    assert again is not None
    assert again.answered
    virtual = thread.virtual(again, sent)
    assert words(forwarded(virtual, again, sent)) == "u2"
    assert virtual.views[-1].reply == 4  # it stays answered, whatever becomes of this attempt


NEW, AGAIN = Hints(history="new"), Hints(history="new", sdk_retry=True)


def behind_another() -> tuple[Thread, tuple[Reconciled, Sent]]:
    """u2 is asked again because its reply was lost, u3 is stored ahead of its own, and the second reply to u2 comes first: the thread
    as it stands then, and the turn of u3 as it was opened before."""
    thread = told("u1 a1")
    thread.turn(chat("u2"), reply("2"), NEW)
    again = opened(thread, "u2", AGAIN)
    thread.turn(chat("u3"), None, NEW)
    waiting = opened(thread, "u3", NEW)
    assert (again[0].case, waiting[0].case) == ("retry", "retry")
    thread.commit(closed(thread.memory, *again, "A"))
    assert transcript(thread) == "u1 a1 u2 a2 u3 aA"
    return thread, waiting


def test_a_reply_that_came_behind_another_question_is_not_its_answer() -> None:
    """Both stand right behind u3, and only one is its reply: the other one's stays."""
    thread, waiting = behind_another()
    assert live(closed(thread.memory, *waiting, "B")) == "u1 a1 u2 a2 u3 aA aB"


@pytest.mark.parametrize("text", ["u2", "u3"])
def test_a_retry_behind_others_takes_back_its_own_reply_alone(text: str) -> None:
    """What others had said before that reply came is not the retry's to supersede."""
    thread, waiting = behind_another()
    if text == "u3":
        thread.commit(closed(thread.memory, *waiting, "B"))
    before = transcript(thread)
    thread.turn(chat(text), reply("C"), AGAIN)
    assert transcript(thread) == before.rpartition(" ")[0] + " aC"


def test_two_retries_behind_others_leave_one_reply() -> None:
    """Both were overtaken by another question; the later one's reply replaces the earlier one's, and nothing else."""
    thread = told("u1 a1")
    thread.turn(chat("u2"), reply("2"), NEW)
    first, second = opened(thread, "u2", AGAIN), opened(thread, "u2", AGAIN)
    thread.turn(chat("u3"), None, NEW)
    thread.commit(closed(thread.memory, *first, "A"))
    assert live(closed(thread.memory, *second, "B")) == "u1 a1 u2 a2 u3 aB"


def test_two_that_edit_alike_behind_others_are_one() -> None:
    """The edit was asked twice, and another tab's turn came first: it stands behind that once, with the later reply."""
    thread = told("u1 a1 u2 a2")
    first, second, other = opened(thread, "u1 a1 u4"), opened(thread, "u1 a1 u4"), opened(thread, "u1 a1 u2 a2 u3")
    thread.commit(closed(thread.memory, *other, "3"))
    thread.commit(closed(thread.memory, *first, "A"))
    assert live(closed(thread.memory, *second, "B")) == "u1 a1 u2 a2 u3 a3 u4 aB"


def test_a_result_that_came_meanwhile_stays() -> None:
    """A question and another client's tool result wait side by side: the reply to the question takes nothing of it back."""
    thread = told("u1 cx")
    thread.turn(chat("u2"), None, NEW)
    waiting = opened(thread, "u2", NEW)
    thread.turn(chat("rx"), None, NEW)
    assert live(closed(thread.memory, *waiting, "A")) == "u1 cx u2 rx aA"


def test_a_reply_nobody_has_shown_is_no_reason_to_drop_the_next_one() -> None:
    """The first reply was lost on its way and others spoke since: the client that asked again has the second one alone."""
    thread = told("u1 a1")
    thread.turn(chat("u2"), None, NEW)
    second = opened(thread, "u2", NEW)
    thread.turn(chat("u2"), reply("A"), NEW)
    thread.turn(chat("u3"), reply("3"), NEW)
    again = merged(thread.memory, *second)
    assert again is not None
    pieces = forwarded(thread.virtual(again, second[1]), again, second[1])
    assert words(pieces) == "[u1] [a1] [u3] [a3] u2"
    assert live(closed(thread.memory, *second, "B")) == "u1 a1 u2 aA u3 a3 aB"


def test_a_reply_that_stands_is_not_recorded_again_behind_others() -> None:
    """A commit was written, its confirmation was lost, others spoke, and it is tried again."""
    thread = told("u1 a1")
    first = opened(thread, "u2", NEW)
    thread.commit(closed(thread.memory, *first, "A"))
    thread.turn(chat("u3"), reply("3"), NEW)
    after = closed(thread.memory, *first, "A")
    assert live(after) == "u1 a1 u2 aA u3 a3"
    assert (after.views, after.turns) == (thread.memory.views, thread.memory.turns)


@pytest.mark.parametrize("shown", ["rx", "u1 a1 u2 cx rx"])
def test_a_late_reply_to_calls_that_have_their_results_is_not_recorded(shown: str) -> None:
    """The client has gone on with the first reply, whether it shows the calls or their results alone."""
    thread = told("u1 a1")
    second = opened(thread, "u1 a1 u2")
    thread.turn(chat("u1 a1 u2"), message("c", "x"))
    thread.turn(chat(shown), None)
    assert live(closed(thread.memory, *second, "B")) == "u1 a1 u2 cx rx"


def test_a_reply_that_its_client_has_stored_already_is_not_recorded_again() -> None:
    """A commit was held up until the next turn had brought the question and its reply as well."""
    thread = told("u1 a1")
    late = opened(thread, "u1 a1 u2")
    thread.turn(chat("u1 a1 u2 aA u3"), reply("3"))
    assert live(closed(thread.memory, *late, "A")) == "u1 a1 u2 aA u3 a3"


def test_a_reply_that_no_attempt_accounts_for_is_never_superseded() -> None:
    """Another question's reply, its attempt forgotten, right behind a question that waits: its place is no proof of what it answers."""
    thread = told("u1 a1")
    thread.turn(chat("u2"), None, NEW)
    other = opened(thread, "u2", NEW)
    thread.turn(chat("u3"), None, NEW)
    waiting = opened(thread, "u3", NEW)
    thread.commit(closed(thread.memory, *other, "2"))
    thread.memory = replace(thread.memory, views=())
    assert live(closed(thread.memory, *waiting, "3")) == "u1 a1 u2 u3 a2 a3"


def test_what_others_said_in_turns_that_overlap_twice_stays_in_the_prompt() -> None:
    """Others speak once and again while a question waits: all of it is shown, in its order, before what is asked."""
    thread = told("u1 a1")
    thread.turn(chat("u2"), None, NEW)
    rec, sent = opened(thread, "u2", NEW)
    for text in ("3", "4"):
        thread.turn(chat(f"u{text}"), reply(text), NEW)
        again = merged(thread.memory, rec, sent)
        assert again is not None
        rec = again
    pieces = forwarded(thread.virtual(rec, sent), rec, sent)
    assert words(pieces) == "[u1] [a1] [u3] [a3] [u4] [a4] u2"


def test_the_next_request_of_a_reminding_client_whose_reply_came_behind_others() -> None:
    """Its attempt ends where others spoke; without its reminder it is a prefix all the same, and is told once."""
    thread = told("u1 a1")
    thread.turn(chat("u1 a1 u2 s0"), None)
    waiting = opened(thread, "u1 a1 u2 s0")
    thread.turn(chat("u3"), reply("3"), NEW)
    thread.commit(closed(thread.memory, *waiting, "2"))
    assert words(ask(thread, "u1 a1 u2 a2 u4 s0")) == "u1 a1 u2 a2 u4 s0"
    thread.turn(chat("u1 a1 u2 a2 u4 s0"), reply("4"))
    assert transcript(thread) == "u1 a1 u2 s0 u3 a3 a2 u4 a4"


def test_background_work_in_between_changes_nothing() -> None:
    """Coverage may move while a turn runs: what it means stays."""
    thread = told(LONG)
    rec, sent = opened(thread, LONG + " u4")
    thread.observe(4)
    thread.activate(1)
    memory = closed(thread.memory, rec, sent, "4")
    assert live(memory) == "u3 a3 u4 a4"
