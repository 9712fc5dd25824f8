"""Corrections in place, and old messages that their client renders in its own way."""

from __future__ import annotations

import json
from random import Random

import pytest

from om_proxy.memory.model import Cell
from om_proxy.memory.transcript.corrections import find_corrections, is_own_rendering
from om_proxy.memory.transcript.rebase_turn import rebase_turn
from om_proxy.memory.transcript.reconcile import Hints
from tests.memory.clients import (
    Thread,
    build_covered_thread,
    build_thread,
    chat,
    forwarded_words,
    raw,
    render_live_words,
    reply,
)

LONG = "u1 a1 u2 a2 u3 a3"
FULL = Hints("full")


def ask(thread: Thread, words: str, hints: Hints = Hints()) -> str:
    """Play a turn, and return what was forwarded."""
    verdict, sent, pieces = thread.ask(chat(words), hints)
    thread.close(verdict, sent, reply(words.rsplit(maxsplit=1)[-1][1:]))
    return forwarded_words(pieces)


CORRECTIONS = [
    # sent over LONG, of which four messages are noted and two more in a chunk
    pytest.param("u1 a1 uX a2 u3 a3 u4", "uX u3 a3 u4", ["X"], id="a question"),
    pytest.param("u1 aX u2 a2 u3 a3 u4", "aX u3 a3 u4", ["X"], id="a reply"),
    pytest.param("uX a1 u2 a2 u3 a3 u4", "uX u3 a3 u4", ["X"], id="the first message"),
    pytest.param("u1 a1 u2 a2 uX a3 u4", "uX a3 u4", ["X"], id="one in a chunk"),
    pytest.param("u1 a1 uX aY u3 a3 u4", "uX aY u3 a3 u4", ["X", "Y"], id="a question and its reply"),
    pytest.param("uX a1 u2 aY u3 a3 u4", "uX aY u3 a3 u4", ["X", "Y"], id="two, apart"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "forwarded", "corrections"), CORRECTIONS)
def test_a_correction_reaches_the_model(sent: str, forwarded: str, corrections: list[str]) -> None:
    """A message in other words than are noted is forwarded where the client shows it, from this
    request on, until the next notes cover it; those notes are made from it."""
    thread = build_covered_thread(LONG, 4, 2)
    assert ask(thread, sent) == forwarded
    assert ask(thread, sent + " a4 u5") == forwarded + " a4 u5"
    assert [word[1:] for word in render_live_words(thread).split()][6:] == [*corrections, *"4455"]
    thread.observe(20)
    thread.activate(9)
    assert ask(thread, sent + " a4 u5 a5 u6") == "u6"
    assert ask(thread, sent + " a4 u5 a5 u6 a6 u7") == "u6 a6 u7"
    assert thread.cases[-1] == "extend"


def test_the_prefix_stays_while_a_correction_is_raw() -> None:
    """What was forwarded is forwarded again, in the same order: a provider's cache stays warm."""
    thread = build_covered_thread(LONG, 4, 2)
    sent, before = "u1 a1 uX a2 u3 a3 u4", ""
    for n in range(4, 9):
        after = ask(thread, sent)
        assert after.startswith(before)
        sent, before = f"{sent} a{n} u{n + 1}", after


def test_a_correction_without_a_new_message_is_shown_first_and_stored_later() -> None:
    """A regenerated turn brings no message; the correction beside it waits for the next one."""
    thread = build_covered_thread(LONG, 4)
    assert ask(thread, "u1 a1 uX a2 u3") == "uX u3"
    assert "uX" not in render_live_words(thread)
    assert ask(thread, "u1 a1 uX a2 u3 a3 u4") == "uX u3 a3 u4"
    assert render_live_words(thread) == "u1 a1 u2 a2 u3 a3 uX u4 a4"
    assert ask(thread, "u1 a1 uX a2 u3 a3 u4 a4 u5") == "uX u3 a3 u4 a4 u5"


def test_a_corrected_message_can_be_corrected_again() -> None:
    """The newest text counts, also if it is the first one again."""
    thread = build_covered_thread(LONG, 4)
    ask(thread, "u1 a1 uX a2 u3 a3 u4")
    thread.observe(20)
    thread.activate(9)
    assert ask(thread, "u1 a1 uY a2 u3 a3 u4 a4 u5") == "uY u5"
    assert ask(thread, "u1 a1 u2 a2 u3 a3 u4 a4 u5 a5 u6") == "u2 u5 a5 u6"
    assert ask(thread, "u1 a1 u2 a2 u3 a3 u4 a4 u5 a5 u6 a6 u7") == "u2 u5 a5 u6 a6 u7"
    assert render_live_words(thread).endswith("uX u4 a4 uY u5 a5 u6 a6 u2 u7 a7")


@pytest.mark.parametrize(
    "shown", [["uX", "u2", "uX"], ["uX", "uY", "uX"], ["uX", "u2", "uX", "u2", "uX"]]
)
def test_a_correction_that_returns_to_an_earlier_one(shown: list[str]) -> None:
    """What is shown now counts, whatever was shown and noted before."""
    thread = build_covered_thread(LONG, 4)
    tail = "u4"
    for number, word in enumerate(shown):
        for turn in range(4 + 2 * number, 6 + 2 * number):  # it may be stored with the next request
            assert ask(thread, f"u1 a1 {word} a2 u3 a3 {tail}").split()[0] == word
            tail += f" a{turn} u{turn + 1}"
        assert render_live_words(thread).split().count(word) == 1 + shown[:number].count(word) + (
            word == "u2"
        )
        thread.observe(20)
        thread.activate(9)


def test_the_newest_of_many_corrections_reaches_the_model() -> None:
    """However many were corrected and noted before, and wherever they stand."""
    words = [f"{role}{n}" for n in range(1, 61) for role in "ua"]
    thread = build_covered_thread(" ".join(words), 120)
    for n in range(30):
        place = 25 * n % 117
        words[place] = f"{words[place][0]}X{n}"
        for turn in range(200 + 10 * n, 210 + 10 * n):  # more than there are recorded requests
            words.append(f"u{turn}")
            is_new = turn == 200 + 10 * n
            expected = f"{words[place]} u{turn}" if is_new else f"u{turn}"
            assert ask(thread, " ".join(words)) == expected
            words.append(f"a{turn}")
            thread.observe(9)
            thread.activate(1)


@pytest.mark.parametrize(
    "places",
    [(14, 19, 13, 16, 18, 15), (4, 6, 2, 8, 0), (20, 18, 16, 14, 12)],
    ids=["both roles", "questions", "backwards"],
)
def test_neighbours_that_are_corrected_one_by_one_reach_the_model(places: tuple[int, ...]) -> None:
    """A person who has corrected most of a stretch corrects one more in it."""
    words = [f"{role}{n}" for n in range(1, 21) for role in "ua"]
    thread = build_covered_thread(" ".join(words), 40)
    for n, place in enumerate(places):
        words[place] = f"{words[place][0]}X{n}"
        words.append(f"u{100 + n}")
        assert ask(thread, " ".join(words)) == f"{words[place]} u{100 + n}"
        words.append(f"a{100 + n}")
        thread.observe(9)
        thread.activate(1)


def test_going_back_behind_a_correction_keeps_it() -> None:
    """A fork before the place where a correction is stored takes back what was said, not the
    correction that it shows."""
    thread = build_covered_thread(LONG, 2)
    ask(thread, "uX a1 u2 a2 u3 a3 u4")
    assert ask(thread, "uX a1 u2 a2 u9") == "uX u2 a2 u9"
    assert ask(thread, "uX a1 u2 a2 u9 a9 u10") == "uX u2 a2 u9 a9 u10"
    assert render_live_words(thread) == "u1 a1 u2 a2 u9 a9 uX u10 a10"


def test_a_known_correction_is_found_without_a_recorded_request() -> None:
    """Its place is known as long as a recorded request tells of it, however the client goes on."""
    thread = build_covered_thread(LONG, 4)
    ask(thread, "u1 a1 uX a2 u3 a3 u4")
    verdict = thread.turn(chat("u1 a1 uX a2 u3 a3 u4 aZ u5"), reply("5"))
    assert (verdict.case, verdict.corrections) == ("altered_reply", ())
    assert render_live_words(thread) == "u1 a1 u2 a2 u3 a3 uX u4 aZ u5 a5"
    seqs = [m.seq for m in thread.live()]
    assert find_corrections(thread.memory.views) == {seqs[2]: (seqs[6],)}


def test_a_raced_correction_waits() -> None:
    """Beside another turn that was stored meanwhile, a correction is shown; the next request
    stores it."""
    thread = build_covered_thread(LONG, 4)
    verdict, sent, _ = thread.ask(chat("u1 a1 uX a2 u3 a3 u4"))
    thread.turn(chat("uother"), reply("o"))
    rebased = rebase_turn(thread.memory, verdict, sent)
    assert rebased is not None
    assert rebased.corrections == ()
    assert Cell("corrected", 2, 3, 1, 0) in rebased.cells
    thread.close(rebased, sent, reply("4"))
    assert ask(thread, "u1 a1 uX a2 u3 a3 u4 a4 u5").startswith("uX u3 a3")
    assert render_live_words(thread).endswith("a4 uX u5 a5")


def test_a_raced_text_that_was_noted_meanwhile_is_a_correction() -> None:
    """It was to replace the stored text, which is noted by now, and another turn was stored first.
    The next request stores it."""
    thread = build_covered_thread(LONG, 2)
    verdict, sent, _ = thread.ask(chat("u1 a1 uX a2 u3 a3 u4"))
    assert verdict.swaps
    thread.turn(chat("uother"), reply("o"))
    thread.observe(2)
    thread.activate(1)
    rebased = rebase_turn(thread.memory, verdict, sent)
    assert rebased is not None
    thread.close(rebased, sent, reply("4"))
    assert ask(thread, "u1 a1 uX a2 u3 a3 u4 a4 u5").startswith("uX u3 a3")
    assert render_live_words(thread).endswith("a4 uX u5 a5")


def test_a_client_that_does_not_show_a_correction_gets_it_from_the_store() -> None:
    """A window shows what was said around the place where a correction is stored."""
    thread = build_covered_thread(LONG, 4)
    ask(thread, "u1 a1 uX a2 u3 a3 u4")
    assert ask(thread, "a3 u4 a4 u5") == "[u3] a3 [uX] u4 a4 u5"
    assert ask(thread, "u4 a4 u5 a5 u6") == "[u3] [a3] [uX] u4 a4 u5 a5 u6"
    assert ask(thread, "u1 a1 uX a2 u3 a3 u4 a4 u5 a5 u6 a6 u7").startswith("uX u3 a3 u4 a4")
    assert render_live_words(thread).endswith("a3 uX u4 a4 u5 a5 u6 a6 u7 a7")


@pytest.mark.parametrize(
    ("altered", "spoken", "is_rendering"),
    [
        (1, 1, False),
        (1, 40, False),
        (2, 2, False),  # a question and its reply
        (4, 4, False),  # two exchanges
        (5, 5, True),
        (6, 8, True),
        (6, 9, False),  # a name that was corrected here and there
        (40, 40, True),
    ],
)
def test_a_stretch_in_other_words_is_its_clients_own(
    altered: int, spoken: int, is_rendering: bool
) -> None:
    """People correct a few messages; a client renders nearly all."""
    assert is_own_rendering(altered, spoken) == is_rendering


def test_an_own_rendering_is_not_forwarded_beside_its_notes() -> None:
    """Old messages of both roles in other words, and nothing tells how: they are paired by their
    roles and number before the next equal one."""
    words = " ".join(f"u{n} a{n}" for n in range(1, 9))
    thread = build_covered_thread(words, 12)
    masked = " ".join(f"uq{n} ar{n}" for n in range(1, 7))
    assert ask(thread, masked + " u7 a7 u8 a8 u9") == "u7 a7 u8 a8 u9"
    assert render_live_words(thread) == words + " u9 a9"


def test_an_own_rendering_that_grows_with_each_request_is_not_forwarded() -> None:
    """A client renders what is older than eight messages, so two more each time: the first few are
    taken for corrections, and noted; nothing is forwarded beside its notes for good."""
    thread, words = Thread(), list[str]()
    for turn in range(75):
        words.append(f"u{turn}")
        shown = [f"{word[0]}x{n}" if n < len(words) - 8 else word for n, word in enumerate(words)]
        assert len(ask(thread, " ".join([*shown[:-1], words[-1]])).split()) < 16, turn
        words.append(f"a{turn}")
        thread.observe(4)
        thread.activate(3)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_what_a_client_renders_again_and_again_is_not_stored_each_time(
    share: float, seed: int
) -> None:
    """A client shows some of its older messages in words that nothing explains, and in others again
    at later requests. Few are taken for corrections before it is known."""
    thread, words, dice = Thread(), list[str](), Random(seed)
    rendered: dict[int, str] = {}
    for turn in range(40):
        words.append(f"u{turn}")
        for n in range(len(words) - 9):
            is_new = n not in rendered and dice.random() < share
            if is_new or (n in rendered and rendered[n] != words[n] and dice.random() < 0.3):
                rendered[n] = f"{words[n][0]}x{dice.getrandbits(40)}"
            rendered.setdefault(n, words[n])
        shown = [rendered.get(n, word) for n, word in enumerate(words)]
        assert len(ask(thread, " ".join(shown)).split()) < 12, turn
        words.append(f"a{turn}")
        thread.observe(4)
        thread.activate(3)
    assert len(thread.rows) - len(words) < 16


def test_many_messages_that_are_changed_at_once_are_no_corrections() -> None:
    """Eight are, wherever they stand, and nine are not."""
    words = [f"{role}{n}" for n in range(1, 21) for role in "ua"]
    thread = build_covered_thread(" ".join(words), 36)
    shown = [f"{word[0]}x{word}" if n in range(2, 34, 4) else word for n, word in enumerate(words)]
    assert len(ask(thread, " ".join([*shown, "u30"])).split()) == 13
    words += ["u30", "a30"]
    shown = [f"{word[0]}y{word}" if n in range(3, 40, 4) else word for n, word in enumerate(words)]
    assert len(ask(thread, " ".join([*shown, "u31"])).split()) < 9 + 8 + 3


@pytest.mark.parametrize("hints", [Hints(), FULL, Hints("window")])
def test_messages_that_only_look_different_are_the_same(hints: Hints) -> None:
    """Cut and stamped old messages of both roles stay covered, under each header, and the stored
    texts stay as they are."""
    first = [f"u{n} " + f"word{n} " * 20 if n % 2 else f"a{n} " + f"reply{n} " * 20 for n in range(1, 9)]  # fmt: skip
    told = [raw("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(first)]
    thread = Thread()
    for n in range(0, 8, 2):
        thread.turn(told[: n + 1], told[n + 1], hints)
    thread.observe(4)
    thread.activate(1)
    shown = [raw("user" if n % 2 == 0 else "assistant", f"[12:0{n}] {text[:60]}…") for n, text in enumerate(first[:6])]  # fmt: skip
    sent = [*shown, *told[6:], raw("user", "next")]
    verdict, history, pieces = thread.ask(sent, hints)
    assert (verdict.case, verdict.new, verdict.cut_seq, verdict.swaps) == ("extend", (8,), None, ())
    assert [piece.raw for piece in pieces] == sent[4:]  # as the client shows them
    thread.close(verdict, history, reply("9"))
    assert [m.item.raw for m in thread.live()[:8]] == told


def test_a_window_that_begins_with_an_altered_message() -> None:
    """Its first message is signed anew with each request; what stands behind it is known."""

    def picture(signature: int) -> bytes:
        url = {"url": f"https://store/cat.png?sig={signature}"}
        return raw("user", [{"type": "image_url", "image_url": url}])

    thread = Thread()
    window = [raw("user", "1"), reply("1"), picture(1)]
    thread.turn(window[:1], window[1])
    thread.turn(window, reply("2"))
    for n in range(3, 9):
        window = [picture(n), reply("2"), *chat(" ".join(f"u{k} a{k}" for k in range(3, n))), raw("user", str(n))]  # fmt: skip
        _, _, pieces = thread.ask(window)
        thread.turn(window, reply(str(n)))
        thread.observe(2)
        thread.activate(1)
        assert len([piece for piece in pieces if b"cat.png" in piece.raw]) <= 1
    assert pieces[0].seq > 4  # noted: not forwarded any more
    assert len(thread.live()) == 16


@pytest.mark.parametrize("sent", ["u1 a1 uX a2 u3 a3 u4", "uX a1 u2 a2 u3 a3 u4", "u1 a1 u2 aX u3 a3 u4"])  # fmt: skip
def test_history_full_is_cut_at_the_first_difference(sent: str) -> None:
    """From there on, what was sent is the transcript; the notes of what was cut go."""
    thread = build_covered_thread(LONG, 4)
    assert ask(thread, sent, FULL) == sent
    assert render_live_words(thread) == sent + " a4"
    assert ask(thread, sent + " a4 u5", FULL).endswith("u4 a4 u5")
    assert thread.cases[-2:] == ["edit", "extend"]


def test_history_full_revives_no_branch_in_other_words() -> None:
    """A correction is not taken for an older branch, whose notes hold its old text."""
    thread = build_covered_thread(LONG, 2)
    thread.observe(2)
    ask(thread, "u1 a1 u2 aX u3 a3 u4", FULL)
    sent = "u1 aY u2 aX u3 a3 u4 a4 u5"
    assert ask(thread, sent, FULL) == sent
    assert thread.cases[-2:] == ["edit", "edit"]
    assert render_live_words(thread) == sent + " a5"


def test_history_full_goes_back_to_an_older_branch() -> None:
    thread = build_covered_thread(LONG, 4)
    ask(thread, "u1 a1 u2 aX u3 a3 u4", FULL)
    ask(thread, LONG + " u5", FULL)
    assert thread.cases[-1] == "switch"
    assert render_live_words(thread) == LONG + " u5 a5"


def test_a_turn_as_always_reads_no_text() -> None:
    """Texts are read only where fingerprints leave a message of the past without a place."""
    thread = build_thread(LONG)
    for sent in ("a3 u4", LONG + " u4", LONG + " u4 a4 u5", LONG, "u1 a1 u2", "u1 a1 u9", "u7"):
        ask(thread, sent)
    assert thread.compared == 0


@pytest.mark.parametrize("size", [5, 7])
def test_a_window_whose_old_messages_all_look_different(size: int) -> None:
    """Its client stamps all but the newest message, so no fingerprint is known: the texts are."""
    thread, shown = Thread(), list[bytes]()
    for turn in range(12):
        shown.append(raw("user", f"Question number {turn}, what is the price of item {turn}?"))
        window = [_stamp(one) for one in shown[-size:-1]] + shown[-1:]
        answer = raw("assistant", f"Item number {turn} costs {turn} coins at the market.")
        thread.turn(window, answer)
        shown.append(answer)
    assert len(thread.live()) == 24


def _stamp(message: bytes) -> bytes:
    said = json.loads(message)
    return raw(said["role"], f"[2026-03-02 09:04] {said['content']}")
