"""The last look at a prompt: no result without its call, no call without its results."""

from __future__ import annotations

import pytest

from om_proxy.memory.model import Message
from om_proxy.memory.prompt.tail import NOTHING_BROKEN, Piece, find_broken_pieces
from tests.memory.clients import build_covered_thread, build_thread, chat, parse
from tests.support.counting import TIMES, count_lines_run

STORED = "u1 cx+y rx ry a1 u2"


def broken(shown: str, sent: str, stored: str = STORED) -> str:
    """The words of the prompt that are broken. `shown`: the prompt, with words of the store in
    brackets."""
    thread = build_thread(stored)
    history = thread.read_sent(chat(sent))
    seqs = {m.item.raw: m.seq for m in thread.live()}
    places = {raw: place for place, raw in enumerate(history.raws)}
    words = shown.split()
    raws = chat(shown.replace("[", "").replace("]", ""))
    pieces = []
    for word, raw in zip(words, raws, strict=True):
        item, index = parse(raw), -1 if word.startswith("[") else places[raw]
        pieces.append(Piece(raw, item.role, item.calls, item.answers, 1, seqs.get(raw, 0), index))
    found = find_broken_pieces(pieces, thread.memory, history)
    assert found.is_fault is bool(found.indices)
    return " ".join(words[i] for i in sorted(found.indices))


@pytest.mark.parametrize(
    ("shown", "sent", "found"),
    [
        pytest.param("u1 cx+y rx ry a1 u2", STORED, "", id="whole"),
        pytest.param("u1 cx+y ry rx a1 u2", "u1 cx+y ry rx a1 u2", "", id="another order"),
        pytest.param("[u1] [cx+y] rx ry", "rx ry", "", id="the call from the store"),
        pytest.param("u1 cx+y", "u1 cx+y", "", id="calls at the end wait"),
        pytest.param("rx ry a1 u2", STORED, "rx ry", id="results without their call"),
        pytest.param("rx ry", "rx ry", "rx ry", id="a lone client's, without the stored call"),
        pytest.param("[rx] a1 u2", "a1 u2", "[rx]", id="a stored result without its call"),
        pytest.param("u1 cx+y rx a1 u2", STORED, "cx+y rx", id="one result is missing"),
        pytest.param("[cx+y] a1 u2", "a1 u2", "[cx+y]", id="stored calls without results"),
        pytest.param("u1 cx+y a1 rx ry u2", STORED, "rx ry cx+y", id="a message between"),
        pytest.param("u1 cx+y rx ry [ry] a1", "u1 cx+y rx ry a1", "[ry]", id="twice"),
    ],
)
def test_broken_by_us(shown: str, sent: str, found: str) -> None:
    """A message is broken if the client, or the store, shows its counterpart right beside it."""
    assert sorted(broken(shown, sent).split()) == sorted(found.split())


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("rq a1 u2", id="a result of an unknown call"),
        pytest.param("u1 cq u2", id="a call that was never answered"),
        pytest.param("u1 cq u2 rq", id="a result behind another message"),
        pytest.param("u1 cp+q rp a1 u2", id="a result too few"),
        pytest.param("u1 cp rp rp a1 u2", id="a result twice"),
    ],
)
def test_the_clients_own_faults_are_not_accused(sent: str) -> None:
    """What the client sends broken goes out as it sent it."""
    assert broken(sent, sent) == ""


def test_a_stored_result_of_an_unknown_call_is_left_out() -> None:
    """A client that sends its newest messages only began with it: no server takes it, and nothing
    was parted."""
    thread = build_thread("rq a1 u2")
    history = thread.read_sent(chat("u3"))
    pieces = [_stored_piece(m) for m in thread.live()]
    assert find_broken_pieces(pieces, thread.memory, history) == (frozenset((0,)), False)


def test_a_stored_result_of_a_noted_call_is_left_out() -> None:
    """Other turns ended before its own, and their notes took the call. It is noted later."""
    thread = build_covered_thread("u1 cx u2 a2", 4)
    (answer,) = chat("a1")
    thread.turn(chat("rx"), answer)
    history = thread.read_sent(chat("u3"))
    pieces = [_stored_piece(m) for m in thread.live() if m.seq > thread.memory.coverage]
    assert find_broken_pieces(pieces, thread.memory, history) == (frozenset((0,)), False)


def _stored_piece(message: Message) -> Piece:
    item = message.item
    return Piece(item.raw, item.role, item.calls, item.answers, 1, message.seq, -1)


def test_the_look_costs_a_step_a_message() -> None:
    """Nothing but the prompt is read, however long the client's history is."""
    words = "u1 cx rx a1 " * 15
    thread = build_thread("u1")
    items = [parse(raw) for raw in chat(words)]
    pieces = [
        Piece(item.raw, item.role, item.calls, item.answers, 1, 0, i)
        for i, item in enumerate(items)
    ]
    short, long = (thread.read_sent(chat(words) * times) for times in (1, TIMES))
    looks = [
        lambda sent=sent: find_broken_pieces(pieces, thread.memory, sent) for sent in (short, long)
    ]
    assert looks[0]() == looks[1]() == NOTHING_BROKEN
    assert count_lines_run(looks[0]) == count_lines_run(looks[1]) < 12 * len(pieces)
