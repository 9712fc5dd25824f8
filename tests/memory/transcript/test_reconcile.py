"""Every case of the specification's table, the rule of proof, styles, hints and the bounds of the
fast path."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.model import Cell, View
from om_proxy.memory.transcript.reconcile import Hints, reconcile
from om_proxy.memory.transcript.sent_history import SentHistory, recognise
from om_proxy.memory.transcript.stored_transcript import NeedOutline, StoredTranscript
from om_proxy.memory.transcript.verdict import Verdict
from tests.memory.clients import (
    Thread,
    build_covered_thread,
    build_thread,
    chat,
    forwarded_words,
    parse,
    raw,
    render_live_words,
)

LONG = "u1 a1 u2 a2 u3 a3"

CASES = [
    # stored, sent, case, live after the reply aR
    pytest.param("u1 a1", "u1 a1 u2", "extend", "u1 a1 u2 aR", id="extend"),
    pytest.param("u1", "u1 a1 u2", "extend", "u1 a1 u2 aR", id="extend, with a reply only the client got"),
    pytest.param("u1 a1 u2 a2", "u1 a1 u2", "retry", "u1 a1 u2 aR", id="retry"),
    pytest.param("u1 a1 u2", "u1 a1 u2", "retry", "u1 a1 u2 aR", id="retry of an unanswered turn"),
    pytest.param("u1 a1 u2", "u1 a1 u3", "edit", "u1 a1 u3 aR", id="edit of an unanswered message"),
    pytest.param("u1 cx rx a1", "u1", "retry", "u1 aR", id="regenerate a turn with its tool steps"),
    pytest.param("u1 cx rx a1", "u1 cx rx", "retry", "u1 cx rx aR", id="regenerate behind the tool result"),
    pytest.param(LONG, "u1 a1 u2", "rewind", "u1 a1 u2 aR", id="rewind"),
    pytest.param(LONG, "u1 a1 u4", "edit", "u1 a1 u4 aR", id="edit"),
    pytest.param(LONG, "u2 a2 u3 a3 u4", "trimmed", LONG + " u4 aR", id="trimmed"),
    pytest.param(LONG, "a3 u4", "trimmed", LONG + " u4 aR", id="trimmed to the last reply"),
    pytest.param(LONG, "a1 u2 a2 u4", "trimmed_edit", "u1 a1 u2 a2 u4 aR", id="trimmed edit"),
    pytest.param(LONG, "u8 a8 u9", "delta", LONG + " u8 a8 u9 aR", id="delta: another device"),
    pytest.param(LONG, "u4", "delta", LONG + " u4 aR", id="delta: the newest message alone"),
    pytest.param("u1 cx", "rx", "delta", "u1 cx rx aR", id="delta: the newest result alone"),
    pytest.param(LONG, "usummary u3 a3 u4", "compacted", LONG + " u4 aR", id="compacted"),
    pytest.param(LONG, "uchanged a1 u2 a2 u3 a3 u4", "altered_user", "uchanged " + LONG[3:] + " u4 aR", id="altered head"),
    pytest.param("u1 a1 u2 a2", "u1 aX u2 a2 u3", "altered_reply", "u1 aX u2 a2 u3 aR", id="altered reply"),
    pytest.param("u1 a1", "u1 aX u2", "altered_reply", "u1 aX u2 aR", id="altered reply where ours ends"),
    pytest.param(LONG, "u1 a1 uX a2 u3 a3 u4", "altered_user", "u1 a1 uX a2 u3 a3 u4 aR", id="altered user"),
    pytest.param("u1 cx rx a1", "u1 cx rx=pruned a1 u2", "stubbed", "u1 cx rx a1 u2 aR", id="stubbed"),
    pytest.param("u1 cx rx cy ry a1", "u1 a1 u2", "folded", "u1 cx rx cy ry a1 u2 aR", id="folded"),
    pytest.param("u1 cx rx a1", "u1 aX u2", "folded", "u1 cx rx a1 u2 aR", id="folded and altered"),
    pytest.param(LONG, "u1 a1 u3 a3 u4", "gapped", LONG + " u4 aR", id="gapped"),
    pytest.param(LONG, "u1 uomitted u3 a3 u4", "gapped", LONG + " u4 aR", id="gapped, with filler"),
    pytest.param("u1 u2 a2", "u1 a1 u2 a2 u3", "inserted", "u1 a1 u2 a2 u3 aR", id="inserted"),
    pytest.param("u1 s0 a1", "u1 a1 u2 s0", "ephemeral", "u1 s0 a1 u2 aR", id="ephemeral: a reminder moved"),
    pytest.param("u1 s0 a1", "u1 a1 u2", "ephemeral", "u1 s0 a1 u2 aR", id="ephemeral: a reminder dropped"),
    pytest.param("u1 cx+y rx ry a1", "rx ry", "step_retry", "u1 cx+y rx ry aR", id="retry of a step"),
    pytest.param("u1 a1", "u1 a1 a2", "continue", "u1 a1 a2 aR", id="continue a reply the client began"),
    pytest.param("u1 a1", "u1 a1", "continue", "u1 a1 aR", id="continue our reply"),
    pytest.param(LONG, "", "none", LONG, id="none"),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "sent", "case", "after"), CASES)
def test_the_table(stored: str, sent: str, case: str, after: str) -> None:
    """Each request has the name and the effect that the specification's table gives it."""
    thread = build_thread(stored)
    verdict = thread.turn(chat(sent), raw("assistant", "R") if sent else None)
    assert verdict.case == case
    assert render_live_words(thread) == after


def test_first() -> None:
    """Into an unknown thread everything goes as it was sent."""
    thread = Thread()
    assert thread.turn(chat("u1 a1 u2"), raw("assistant", "R")).case == "first"
    assert render_live_words(thread) == "u1 a1 u2 aR"


def test_an_altered_text_between_two_folded_stretches_is_one_with_both() -> None:
    """Told by its position alone between two stretches nobody can tell: the three are one stretch,
    never two that touch."""
    thread = build_thread("u1 cx rx aw cy ry u2 a2")
    seqs = [m.seq for m in thread.live()]
    verdict = thread.reconcile(thread.read_sent(chat("u1 aX u2 a2 u3")))
    assert [c for c in verdict.cells if c.kind == "folded"] == [
        Cell("folded", 1, 2, seqs[1], seqs[5])
    ]


def test_an_older_branch_lives_again() -> None:
    """Messages that match a superseded branch revive it under their own numbers."""
    thread = build_thread(LONG)
    seqs = [m.seq for m in thread.live()]
    thread.turn(chat("u1 a1 u9"), raw("assistant", "9"))
    verdict = thread.turn(chat(LONG + " u4"), raw("assistant", "R"))
    assert (verdict.case, verdict.cut_seq, verdict.revive) == ("switch", seqs[1], tuple(seqs[2:]))
    assert render_live_words(thread) == LONG + " u4 aR"
    assert [m.seq for m in thread.live()][:6] == seqs


def test_a_reply_we_never_had_on_an_older_branch_is_taken_for_ours_folded_and_altered() -> None:
    """A limit: whether a client altered the reply we hold and folds its steps away, or shows
    another one, nobody can tell."""
    thread = build_thread(LONG + " u4 cx rx a4")
    thread.turn(chat("u1 a1 u2 a2 u9"), raw("assistant", "9"))
    verdict = thread.turn(chat(LONG + " u4 aX u5"), raw("assistant", "R"))
    assert verdict.case == "switch"
    assert [cell.kind for cell in verdict.cells] == ["same", "folded"]
    assert render_live_words(thread) == LONG + " u4 cx rx a4 u5 aR"


def test_nothing_changes_before_the_turn_is_complete() -> None:
    """A fork whose upstream failed leaves the transcript as it was."""
    thread = build_thread(LONG)
    thread.turn(chat("u1 a1 u9"), None)
    assert render_live_words(thread) == LONG


# ── proof ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("stored", "sent", "after"),
    [
        pytest.param("u1 a1 uok a2 u3 a3 uok a4", "u8 uok", "u1 a1 uok a2 u3 a3 uok a4 u8 uok aR", id="a repeated text"),
        pytest.param(LONG, "u8 u2", LONG + " u8 u2 aR", id="a known question behind an unknown one"),
        pytest.param(LONG, "s8 u3", LONG + " s8 u3 aR", id="the last question behind a summary"),
    ],
)  # fmt: skip
def test_destructive_needs_proof(stored: str, sent: str, after: str) -> None:
    """Nothing is superseded without a match from the start or through a text unique in the
    thread."""
    thread = build_thread(stored)
    verdict = thread.turn(chat(sent), raw("assistant", "R"))
    assert verdict.cut_seq is None
    assert render_live_words(thread) == after


def test_repeated_texts_align_by_their_neighbours() -> None:
    """Five times "ok" is no riddle while replies differ."""
    words = "u1 a1 uok a2 uok a3 uok a4"
    thread = build_thread(words)
    assert thread.turn(chat("uok a3 uok a4 uok"), raw("assistant", "R")).cut_seq is None
    assert render_live_words(thread) == words + " uok aR"


def test_a_reply_seen_before_is_not_taken_for_an_altered_one() -> None:
    """An assistant text may match by position only if it was never seen in this thread."""
    thread = build_thread("u1 a1 u2 a2")
    verdict = thread.turn(chat("u1 a1 u2 a1 u3"), raw("assistant", "R"))
    assert (verdict.case, verdict.swaps) == ("edit", ())
    assert render_live_words(thread) == "u1 a1 u2 a1 u3 aR"


def test_ids_counted_from_zero_in_every_step_prove_nothing() -> None:
    """Some servers call every call `0`; the newest open one is meant."""
    thread = build_thread("u1 c0 r0 a1 u2 c0")
    assert thread.turn(chat("r0=other"), raw("assistant", "R")).case == "delta"
    assert render_live_words(thread) == "u1 c0 r0 a1 u2 c0 r0 aR"


def test_equal_results_of_calls_that_still_wait_are_new() -> None:
    """Some servers count the calls of each round anew, and many results say `ok`. The very same
    bytes answer the newest round, unless the client says that it asks again."""
    thread = build_thread("u1")
    (calls,) = chat("c0+1")
    thread.close(*thread.ask(chat("u1"))[:2], calls)
    for _ in range(2):
        assert thread.turn(chat("r0 r1"), calls).case == "delta"
    assert render_live_words(thread) == "u1 c0+1 r0 r1 c0+1 r0 r1 c0+1"
    assert thread.turn(chat("r0 r1"), calls, Hints(sdk_retry=True)).case == "retry"
    assert thread.turn(chat("r0 r1"), raw("assistant", "R")).case == "delta"
    assert thread.turn(chat("r0 r1"), raw("assistant", "R")).case == "retry"
    assert render_live_words(thread) == "u1 c0+1 r0 r1 c0+1 r0 r1 c0+1 r0 r1 aR"


@pytest.mark.parametrize(
    ("stored", "sent", "forwarded"),
    [
        ("u1 a1 u2 cx rx cy ry a2", "cp rp cq rq a2 u3", "[u1] [a1] [u2] cp rp cq rq a2 u3"),
        ("u1 a1 u2 cx rx cy ry a2", "cp rp a2 u3", "[u1] [a1] [u2] [cx] [rx] cp rp a2 u3"),
        ("u1 a1 u2 cx+y rx ry a2", "cp rp cq rq a2 u3", "[u1] [a1] [u2] cp rp cq rq a2 u3"),
        ("u1 a1 u2 cx rx cy", "cp rp cy ry", "[u1] [a1] [u2] cp rp cy ry"),
        ("u1 a1 u2 a2", "cp rp a2 u3", "[u1] [a1] [u2] cp rp a2 u3"),
        ("u1 a1 u2 cx rx a2", "rp a2 u3", "[u1] [a1] [u2] [cx] [rx] rp a2 u3"),
        ("u1 a1 u2 cx rx a2", "rp cq rq a2 u3", "[u1] [a1] [u2] rp cq rq a2 u3"),
        ("u1 a1 u2 cx rx a2", "usum cp rp a2 u3", "usum [u1] [a1] [u2] cp rp a2 u3"),
        ("u1 cx+y rx ry a1", "cp rp ry a1 u2", "[u1] cp rp [cx+y] [rx] ry a1 u2"),
        ("cx rx a1 u2 a2", "cp rp a1 u2 a2 u3", "cp rp a1 u2 a2 u3"),
    ],
)
def test_a_window_begins_with_unknown_steps(stored: str, sent: str, forwarded: str) -> None:
    """Such as with calls of other ids. They stand where the client shows them, in the place of as
    many stored ones, and not ahead of everything."""
    thread = build_thread(stored)
    assert forwarded_words(thread.ask(chat(sent))[2]) == forwarded


def test_a_window_begins_with_unknown_steps_that_are_noted() -> None:
    """The notes tell them; they are not forwarded beside them."""
    thread = build_covered_thread("u1 a1 u2 cx rx cy ry a2 u3 a3", 7)
    assert thread.memory.coverage == 7
    pieces = thread.ask(chat("cp rp cq rq a2 u3 a3 u4"))[2]
    assert forwarded_words(pieces) == "a2 u3 a3 u4"


def test_what_cannot_be_aligned_is_appended() -> None:
    """Above the cap nothing is guessed: a duplicate can be repaired."""
    thread = build_thread("u1 a1")
    thread.turn(
        chat("u1 a1 " + " ".join(f"u{i} a{i}" for i in range(2, 300)) + " uend"),
        raw("assistant", "end"),
    )
    unmatched = " ".join(f"ux{i} ay{i}" for i in range(300)) + " u299 s1 uR"
    verdict = thread.reconcile(thread.read_sent(chat(unmatched)))
    assert (verdict.case, verdict.cut_seq, len(verdict.new)) == ("delta", None, 603)


# ── lone messages, styles, hints ──────────────────────────────────────────────────────────────────


def thin(words: str) -> Thread:
    """A thread of a client that sends its newest message alone; it never shows our replies."""
    thread = Thread()
    for n, message in enumerate(chat(words)):
        thread.turn([message], raw("assistant", f"reply {n}"))
    return thread


def test_style_is_learnt() -> None:
    """Whole histories, windows and lone messages each prove what their client does."""
    assert build_thread("u1 a1").memory.style == "unknown"
    assert build_thread(LONG).memory.style == "full"
    assert thin("u1 u2").memory.style == "thin"
    thread = build_thread(LONG)
    thread.turn(chat("a3 u4"), raw("assistant", "4"))
    assert thread.memory.style == "window"


def windowed() -> Thread:
    """A window client inside its first turn: its window has left the question behind."""
    thread = build_thread("u1 cx rx cy ry a1")
    thread.memory = replace(thread.memory, style="window")
    return thread


@pytest.mark.parametrize(
    ("thread", "sent", "case"),
    [
        pytest.param(thin("u1"), "u1", "retry", id="the same in the first two turns: retry"),
        pytest.param(thin("u1 uok"), "uok", "delta", id="the same from a thin client: new"),
        pytest.param(
            build_thread("u1 a1 u2 a2"),
            "u1",
            "rewind",
            id="the first of a whole-history client: rewind",
        ),
        pytest.param(
            build_thread("u1 a1 u2 a2"), "u2", "delta", id="the last of a whole-history client: new"
        ),
        pytest.param(build_thread("u1 a1 u2"), "u2", "retry", id="the last, unanswered: retry"),
        pytest.param(build_thread("u1 a1 u2 a2"), "u3", "delta", id="an unknown one: new"),
        pytest.param(
            windowed(), "u1", "retry", id="a recorded one of a window client, still the last: retry"
        ),
    ],
)
def test_a_lone_message(thread: Thread, sent: str, case: str) -> None:
    """A lone message has rules of its own, by the thread's style."""
    assert thread.reconcile(thread.read_sent(chat(sent))).case == case


def test_the_sdk_retry_header_counts_against_the_recorded_attempt() -> None:
    """It makes a retry of the same bytes while nothing came since, and of nothing else."""
    thread = thin("u1 u2 uok")
    retried = Hints(sdk_retry=True)
    assert thread.reconcile(thread.read_sent(chat("uok")), retried).case == "retry"
    assert thread.reconcile(thread.read_sent(chat("u2")), retried).case == "delta"
    thread.turn(chat("u4"), raw("assistant", "4"))
    assert thread.reconcile(thread.read_sent(chat("uok")), retried).case == "delta"


def test_history_full_deletes_what_is_not_sent() -> None:
    """The client's word that it sends everything settles deletions and lone edits."""
    thread = build_thread(LONG)
    thread.turn(chat("u1 a1 u3 a3 u4"), raw("assistant", "R"), Hints("full"))
    assert render_live_words(thread) == "u1 a1 u3 a3 u4 aR"
    thread.turn(chat("uedited"), raw("assistant", "E"), Hints("full"))
    assert render_live_words(thread) == "uedited aE"
    assert thread.memory.style == "full"


def test_history_new_appends_everything() -> None:
    """Known words are new messages, but a recorded attempt stays one."""
    thread = build_thread("u1 a1")
    assert thread.turn(chat("u1 a1"), raw("assistant", "R"), Hints("new")).case == "delta"
    assert render_live_words(thread) == "u1 a1 u1 a1 aR"
    thread.turn(chat("u5"), None, Hints("new"))
    assert thread.reconcile(thread.read_sent(chat("u5")), Hints("new")).case == "retry"


def test_history_window_takes_no_prefix_for_a_rewind() -> None:
    """A window may begin like the thread does without taking anything back."""
    thread = build_thread("uok a1 u2 a2 uok a3")
    assert thread.turn(chat("uok a3 u4"), raw("assistant", "R"), Hints("window")).cut_seq is None
    assert render_live_words(thread) == "uok a1 u2 a2 uok a3 u4 aR"


# ── views ─────────────────────────────────────────────────────────────────────────────────────────


def view(count: int, digest: bytes) -> View:
    return View(count=count, digest=digest, chain=b"", seq=1, end=0, asked_at=0.0)


def test_recognise_finds_the_longest_view() -> None:
    """The longest recorded attempt that the request begins with is found; the newest of equals."""
    raws = chat("u1 a1 u2")
    digests = [recognise((), raws[:n]).digest for n in range(4)]
    views = [view(1, digests[1]), view(2, digests[2]), view(2, b"other"), view(9, digests[3])]
    assert recognise(views, raws).seen is views[1]
    assert recognise(views, raws).digest == digests[3]
    assert recognise([*views[:1], view(3, digests[3])], raws).seen == view(3, digests[3])
    assert recognise([view(1, b"x")], raws).seen is None
    assert recognise([*views[:2], view(3, b"edited")], raws).seen is views[1]


@given(st.lists(st.binary(max_size=6), max_size=5), st.lists(st.binary(max_size=6), max_size=5))
def test_no_two_lists_share_a_digest(one: list[bytes], other: list[bytes]) -> None:
    """The digest includes where one message ends and the next begins."""
    assert (recognise((), one).digest == recognise((), other).digest) == (one == other)


def counted(thread: Thread, raws: Sequence[bytes]) -> tuple[SentHistory, list[int]]:
    """A request that tells which of its messages were looked at."""
    touched: list[int] = []
    sent = thread.read_sent(raws)

    def item(index: int) -> object:
        touched.append(index)
        return sent.item(index)

    return SentHistory(sent.raws, item, sent.digest, sent.seen), touched  # type: ignore[arg-type]  # it returns what sent.item does


def test_the_known_prefix_is_not_parsed() -> None:
    """A request that goes on from a recorded one costs what is new in it, however long the
    thread."""
    words = " ".join(f"u{i} a{i}" for i in range(400))
    thread = build_thread("u0 a0", recent=16)
    thread.turn(chat(words + " uend"), raw("assistant", "end"))
    thread.observe(600)
    thread.activate(1)
    sent, touched = counted(thread, chat(words + " uend aend unew"))
    verdict = reconcile(thread.stored_transcript(), sent)
    assert isinstance(verdict, Verdict)
    assert (verdict.case, verdict.new) == ("extend", (802,))
    assert min(touched) >= 801
    assert len(verdict.cells) == 1


def test_old_forks_ask_for_the_outline() -> None:
    """A fork before the loaded marks is not guessed at."""
    thread = build_thread(" ".join(f"u{i} a{i}" for i in range(20)), recent=4)
    thread.observe(30)
    thread.activate(1)
    sent = thread.read_sent(chat("u0 a0 u1 a1 uother"))
    thread.memory = replace(thread.memory, views=())
    assert isinstance(
        reconcile(thread.stored_transcript(), SentHistory.of(sent.raws, parse)), NeedOutline
    )
    verdict = reconcile(thread.stored_transcript(complete=True), SentHistory.of(sent.raws, parse))
    assert isinstance(verdict, Verdict)
    assert (verdict.case, verdict.cut_seq) == ("edit", 4)


def test_a_window_needs_no_outline() -> None:
    """The loaded marks suffice where the window ends where the transcript ends."""
    thread = build_thread(" ".join(f"u{i} a{i}" for i in range(20)), recent=4)
    thread.observe(30)
    thread.activate(1)
    verdict = reconcile(thread.stored_transcript(), SentHistory.of(chat("u19 a19 u20"), parse))
    assert isinstance(verdict, Verdict)
    assert (verdict.case, verdict.new) == ("trimmed", (2,))


def test_altered_views_stay_recognised() -> None:
    """A client that corrected a covered reply still extends by its own earlier request."""
    thread = build_thread("u1 a1 u2 a2")
    thread.observe(4)
    thread.activate(1)
    thread.turn(chat("u1 aX u2 a2 u3"), raw("assistant", "3"))
    verdict = thread.turn(chat("u1 aX u2 a2 u3 a3 u4"), raw("assistant", "R"))
    assert (verdict.case, verdict.swaps) == ("extend", ())
    assert render_live_words(thread) == "u1 a1 u2 a2 aX u3 a3 u4 aR"


def test_an_edit_under_an_altering_client_keeps_what_stood_before() -> None:
    """All but the last message of a recorded attempt is known, though the chain is the client's
    own."""
    thread = build_thread("u1 a1 u2 a2")
    thread.observe(4)
    thread.activate(1)
    thread.turn(chat("u1 aX u2 aY u3"), raw("assistant", "3"))
    verdict = thread.turn(chat("u1 aX u2 aY u4"), raw("assistant", "R"))
    assert verdict.case == "edit"
    assert render_live_words(thread) == "u1 a1 u2 a2 u4 aR"


def test_known_of_a_bounded_memory() -> None:
    """Messages that are not loaded are counted, and everything up to the newest chunk is fixed."""
    thread = build_thread(LONG, recent=2)
    thread.observe(4)
    thread.activate(1)
    thread.observe(2)
    known = thread.stored_transcript()
    assert (known.missing, len(known.live), known.coverage, known.fixed, known.complete) == (
        2,
        4,
        4,
        6,
        False,
    )
    assert StoredTranscript.of(thread.memory, fixed=9).fixed == 9
