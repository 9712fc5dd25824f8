"""Applying a reconciled turn to the memory."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from om_proxy.memory.model import MAX_VIEWS, Memory, Reflection, extend_chain, replace_log
from om_proxy.memory.transcript.apply_turn import (
    EndedReply,
    append_message,
    apply_request,
    end_turn,
)
from om_proxy.memory.transcript.reconcile import Hints, reconcile
from om_proxy.memory.transcript.stored_transcript import StoredTranscript
from om_proxy.memory.transcript.verdict import Verdict
from om_proxy.memory.transcript.wordings import Texts
from tests.memory.clients import (
    Thread,
    apply_turn,
    build_covered_thread,
    build_thread,
    chat,
    message,
    parse,
    raw,
    render_live_words,
    reply,
    word,
    wording,
)

LONG = "u1 a1 u2 a2 u3 a3"


def test_a_turn_is_numbered_chained_and_remembered() -> None:
    """New messages and the reply get the next numbers; the view says where the request stands and
    what answered it."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u1 a1 u2"), reply("2"))
    memory = thread.memory
    assert [m.seq for m in memory.tail] == [1, 2, 3, 4]
    assert (memory.next_seq, memory.turns, memory.style) == (5, 2, "full")
    chain = bytes(16)
    for m in memory.tail:
        chain = extend_chain(chain, m.item.fp)
        assert m.chain == chain
    view = memory.views[-1]
    assert (view.count, view.seq, view.reply, view.end) == (3, 3, 4, 2)
    assert [tuple(cell) for cell in view.cells] == [("same", 0, 3, 1, 3)]


def test_what_moves_is_not_dated_by_that() -> None:
    """Messages that came without times get new numbers where something is inserted before them.
    That they moved says nothing of when they were said; the turn they came with keeps its time."""
    thread = Thread()
    thread.turn(chat("u1 a1 u2 a2 u3 a3 u4"), reply("4"))
    thread.turn(chat("u1 a1 u8 a8 u2 a2 u3 a3 u4 a4 u5"), reply("5"))
    memory = thread.memory
    words = [word(m.item.raw) for m in memory.tail]
    undated = [w for m, w in zip(memory.tail, words, strict=True) if m.seq <= memory.undated_to]
    assert undated[-1] == "a3", words


@pytest.mark.parametrize(
    ("first", "undated"),
    [
        ("u1", 0),
        ("u1 a1 u2", 2),
        ("u1 a1 u2 a2 u3", 4),
        ("a1 u1", 1),
        ("u1 u2", 0),
        ("u1 a1 u2 u3", 2),
        ("a1", 0),
    ],
)
def test_what_came_together_has_no_times(first: str, undated: int) -> None:
    """The messages of a thread's first request have no known time, except its newest turn. Later
    requests do not change that."""
    thread = Thread()
    thread.turn(chat(first), None)
    assert thread.memory.undated_to == undated
    thread.turn(chat(first), reply("answered"))
    thread.turn(chat(f"{first} a7 u8 a8 u9"), reply("9"))
    assert thread.memory.undated_to == undated


def test_messages_that_say_when_they_were_said() -> None:
    """Each has its time, and is none that came without one; none is older than one before it."""
    thread = Thread()

    def ask(words: str, *said_at: float) -> Memory:
        sent = thread.read_sent(chat(words))
        verdict = thread.reconcile(sent, Hints(history="full"))
        return apply_request(thread.memory, verdict, sent, {}, 99.0, said_at=said_at)

    memory = ask("u1 a1 u2", 10.0, 20.0, 30.0)
    assert [m.at for m in memory.tail] == [10.0, 20.0, 30.0]
    assert memory.undated_to == 0
    thread.commit(memory)
    memory = ask("u1 a1 u2 a2 u3", 10.0, 20.0, 30.0, 29.0, 40.0)
    assert [m.at for m in memory.tail] == [10.0, 20.0, 30.0, 30.0, 40.0]


def test_a_message_outside_of_requests() -> None:
    """It comes after all others, chained, and no request is recorded. The same one is known by its
    time, also by one that was raised."""
    memory = build_thread("u1 a1").memory
    end_at, views = memory.newest_at, memory.views
    item = parse(raw("user", "The phone rang."))
    after = append_message(memory, item, 7, "o200k_base", end_at - 5, end_at + 60)
    said = after.tail[-1]
    assert (said.seq, said.at, said.tokens, said.encoding) == (3, end_at, 7, "o200k_base")
    assert said.chain == extend_chain(memory.chain, item.fp)
    assert (after.next_seq, after.views, after.turns) == (4, views, memory.turns)
    assert after.turn_at == end_at + 60
    again = partial(append_message, after, item, 7, "o200k_base", now=end_at + 60)
    assert again(end_at - 5) is after
    assert again(end_at) is after
    assert again(end_at + 1).tail[-1].at == end_at + 1


def test_a_failed_turn_stays_unanswered_and_is_answered_in_place() -> None:
    """Upstream failed: the message is kept; the same request again adds the reply and nothing
    else."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u1 a1 u2"), None)
    assert (render_live_words(thread), thread.memory.views[-1].reply, thread.memory.turns) == (
        "u1 a1 u2",
        0,
        1,
    )
    verdict = thread.turn(chat("u1 a1 u2"), reply("2"))
    assert (verdict.case, render_live_words(thread)) == ("retry", "u1 a1 u2 a2")
    assert len(thread.memory.views) == 2
    assert thread.memory.views[-1].reply == 4


def test_a_retry_is_no_turn_of_its_own() -> None:
    """Two replies to one request count once."""
    thread = build_thread("u1 a1 u2 a2")
    turns = thread.memory.turns
    thread.turn(chat("u1 a1 u2"), reply("other"))
    assert thread.memory.turns == turns


def test_an_altered_text_replaces_ours() -> None:
    """The client's text replaces ours while it is not observed; the chain behind it follows."""
    thread = build_thread("u1 a1")
    thread.turn(chat("u1 aX u2"), reply("2"))
    assert render_live_words(thread) == "u1 aX u2 a2"
    assert thread.memory.tail[2].chain == extend_chain(
        thread.memory.tail[1].chain, parse(message("u", "2")).fp
    )
    assert thread.memory.views[-1].cells[0].kind == "same"


@pytest.mark.parametrize(("observed", "chunked"), [(2, 0), (0, 2)])
def test_an_altered_text_never_replaces_what_is_observed(observed: int, chunked: int) -> None:
    """A message in the log or in a chunk keeps the text it was noted from; the client's text is
    forwarded, and stored as a correction."""
    thread = build_thread("u1 a1 u2 a2")
    thread.observe(observed or chunked)
    thread.activate(1 if observed else 0)
    _, sent, pieces = thread.ask(chat("u1 aX u2 a2 u3"))
    thread.turn(list(sent.raws), reply("3"))
    assert render_live_words(thread) == "u1 a1 u2 a2 aX u3 a3"
    assert [word(p.raw) for p in pieces].count("aX") == 1


def test_a_range_being_observed_is_fixed_too() -> None:
    """An observation under way reads the text as it stands; nothing changes under it."""
    thread = build_thread("u1 a1")
    sent = thread.read_sent(chat("u1 aX u2"))
    texts = Texts({}, wording)
    verdict = reconcile(StoredTranscript.of(thread.memory, fixed=2), sent, texts=texts)
    assert isinstance(verdict, Verdict)
    assert (verdict.case, verdict.swaps) == ("altered_reply", ())
    assert verdict.corrections == (1,)


def test_the_clients_spelling_replaces_our_reconstruction() -> None:
    """Equal by fingerprint, other bytes: unknown keys matter to whoever sent them."""
    thread = build_thread("u1 a1")
    spelled = raw("assistant", "1", reasoning_content="hm")
    thread.turn([message("u", "1"), spelled, message("u", "2")], reply("2"))
    assert thread.memory.tail[1].item.raw == spelled
    assert render_live_words(thread) == "u1 a1 u2 a2"


def test_a_fork_drops_what_was_made_of_it() -> None:
    """Chunks before the fork stay, chunks that reach beyond it go."""
    thread = build_thread(LONG)
    thread.observe(2)
    thread.observe(2)
    kept = thread.memory.chunks[0]
    thread.turn(chat("u1 a1 u4"), reply("4"))
    assert thread.memory.chunks == (kept,)
    assert render_live_words(thread) == "u1 a1 u4 a4"


def test_a_pending_reflection_survives_a_fork_behind_its_range() -> None:
    """Its sources are all still in the log."""
    thread = build_covered_thread(LONG, 2)
    pending = Reflection(
        generation=0,
        sources=(thread.memory.log.entries[0].id,),
        text="* 🔴",
        tokens=1,
        source_tokens=5,
        at=0.0,
    )
    thread.memory = replace_log(thread.memory, reflection=pending)
    thread.turn(chat("u1 a1 u4"), reply("4"))
    assert thread.memory.log.reflection == pending


def test_what_only_moves_keeps_its_time() -> None:
    """Adopting an insertion renumbers what follows it; it was first seen when it was first seen. What
    joins before it was said no later."""
    thread = build_thread("u1 u2 a2")
    before = {m.item.fp: m.at for m in thread.memory.tail}
    thread.turn(chat("u1 a1 u2 a2 u3"), reply("3"))
    after = {m.item.fp: m.at for m in thread.memory.tail}
    fp = parse(message("u", "2")).fp
    assert after[fp] == before[fp]
    assert after[parse(message("a", "1")).fp] == before[fp]


def test_what_was_stored_while_a_turn_waited_keeps_its_time() -> None:
    """The turn was asked before others ended, and ends after them. What it inserts was said no
    later than what moves for it."""
    thread = build_thread("u1 u2 a2")
    before = replace(thread.memory, tail=tuple([replace(m, at=2.0) for m in thread.memory.tail]))
    thread.memory = before
    verdict, sent, _ = thread.ask(chat("u1 a1 u2 a2 u3"))
    asked = apply_request(before, verdict, sent, {}, 1.0, asked_at=1.0)
    ended = end_turn(before, asked, verdict, 1.0, 9.0, EndedReply(parse(reply("3")), 50))
    assert [m.at for m in ended.tail] == [2.0, 2.0, 2.0, 2.0, 9.0, 9.0]
    assert ended == apply_turn(before, verdict, sent, {}, 9.0, parse(reply("3")), 50, asked_at=1.0)


def test_views_are_bounded_and_questions_outlive_steps() -> None:
    """People come back to their own messages: of a long run of tool steps the attempts inside go
    first."""
    thread = build_thread("u1 a1 u2 a2 u3")
    so_far = chat("u1 a1 u2 a2 u3")
    for step in range(12):
        so_far += [message("c", f"c{step}"), message("r", f"c{step}")]
        thread.turn(so_far, message("c", f"c{step + 1}"))
    views = thread.memory.views
    assert len(views) == MAX_VIEWS
    assert [v.count for v in views][:3] == [1, 3, 5]
    assert views[-1].count == len(so_far)


def test_a_message_counts_with_its_own_turn() -> None:
    """The first turn of a lone message tells nothing of its client. What is about it stays in its
    account when the next turn shows a thin client, and so on when that sends all again."""
    thread = Thread()
    thread.turn(chat("u1"), reply("1"))
    first = thread.memory
    thread.turn(chat("u2"), reply("2"))
    second = thread.memory
    assert (first.history, second.history) == ("full", "partial")
    for memory in (first, second):
        assert [memory.history_at(seq) for seq in (1, 2)] == ["full", "full"]
    assert [second.history_at(seq) for seq in (3, 4)] == ["partial", "partial"]
    thread.turn(chat("u3"), reply("3"))
    assert thread.memory.history_after == 2
    thread.turn(chat("u1 a1 u2 a2 u3 a3 u4"), reply("4"))
    assert [thread.memory.history_at(seq) for seq in (6, 7, 8)] == ["partial", "full", "full"]


def test_a_client_that_says_so_is_thin_from_the_start() -> None:
    thread = Thread()
    thread.turn(chat("u1"), reply("1"), Hints(history="new"))
    assert [thread.memory.history_at(seq) for seq in (1, 2)] == ["partial", "partial"]
