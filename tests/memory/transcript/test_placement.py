"""Results of one step in another order are the same step: each is placed by its call."""

from __future__ import annotations

import pytest

from tests.memory.clients import (
    build_covered_thread,
    build_thread,
    chat,
    forwarded_words,
    render_live_words,
)

STEP = "u1 cx+y+z rx ry rz a1 u2 a2"
TWO_STEPS = "u1 c0+1 r0=a r1=b a1 u2 c0+1 r0=c r1=d a2"  # a server that counts its calls anew
OPEN_STEP = "u1 c0+1 r1=b r0=a c0+1"


@pytest.mark.parametrize(
    ("stored", "sent", "case"),
    [
        pytest.param(STEP, "u1 cx+y+z rz rx ry a1 u2 a2 u3", "extend", id="whole history"),
        pytest.param(STEP, "u1 cx+y+z rz rx=cut ry a1 u2 a2 u3", "stubbed", id="one pruned"),
        pytest.param(STEP, "u1 cx+y+z ry rz rx", "rewind", id="back to the step"),
        pytest.param(STEP, "cx+y+z ry rz rx a1 u2 a2 u3", "trimmed", id="window from the call on"),
        pytest.param(STEP, "rz ry rx a1 u2 a2 u3", "trimmed", id="window from the results on"),
        pytest.param(STEP, "rz rx a1 u2 a2 u3", "extend", id="window from inside the step"),
        pytest.param(STEP, "rx a1 u2 a2 u3", "extend", id="window from its last result"),
        pytest.param(STEP, "u1 cx rx cy ry cz rz a1 u2 a2 u3", "folded", id="one message a call"),
        pytest.param(
            TWO_STEPS, "u1 c0+1 r1=b r0=a a1 u2 c0+1 r1=d r0=c a2 u3", "extend", id="reused ids"
        ),
        pytest.param(
            "u1 cx+y ry rx a1 cz+v rv rz a2",
            "u1 cx+y rx ry a1 cz+v rz rv a2 u3",
            "extend",
            id="two",
        ),
    ],
)
def test_another_order_is_the_same_transcript(stored: str, sent: str, case: str) -> None:
    """Nothing is new but the newest message, and nothing is superseded."""
    thread = build_thread(stored)
    verdict = thread.turn(chat(sent), None)
    assert verdict.case == case
    # the words of the transcript say nothing of a result's text
    stored_words = " ".join(word.split("=")[0] for word in stored.split())
    newest = " u3" if sent.endswith("u3") else ""
    assert (verdict.forks, render_live_words(thread)) == (
        case == "rewind",
        stored_words + newest,
    )


@pytest.mark.parametrize(
    ("sent", "forwarded"),
    [
        pytest.param("u1 cx+y+z rz rx ry a1 u2 a2 u3", "u2 a2 u3", id="whole history"),
        pytest.param("rz rx a1 u2 a2 u3", "u2 a2 u3", id="window from inside the step"),
        pytest.param("u1 cx rx cy ry cz rz a1 u2 a2 u3", "u2 a2 u3", id="one message a call"),
    ],
)
def test_a_covered_step_leaves_nothing_behind(sent: str, forwarded: str) -> None:
    """No result and no call of a step that is noted stands in the prompt alone."""
    thread = build_covered_thread(STEP, 6)
    assert forwarded_words(thread.ask(chat(sent))[2]) == forwarded


@pytest.mark.parametrize(
    ("stored", "sent", "live"),
    [
        pytest.param(OPEN_STEP, "u1 c0+1 r0=a r1=b c0+1 r0=c r1=d", "r0=c r1=d", id="in order"),
        pytest.param(OPEN_STEP, "u1 c0+1 r0=a r1=b c0+1 r1=d r0=c", "r1=d r0=c", id="not in order"),
        pytest.param(OPEN_STEP, "u1 c0+1 r0=a r1=b c0+1 r0=a r1=d", "r0=a r1=d", id="one is equal"),
        pytest.param(
            "u1 a1 u2 c0+1 r1=b r0=a c1+0",
            "u1 a1 u2 c0+1 r0=a r1=b c1+0 r0=a r1=b",
            "r0=a r1=b",
            id="all are equal, of another message",
        ),
    ],
)
def test_new_results_with_the_ids_of_an_older_step(stored: str, sent: str, live: str) -> None:
    """They are appended in their order, and the older step keeps its own."""
    thread = build_thread(stored)
    verdict = thread.turn(chat(sent), None)
    assert (verdict.case, verdict.forks) == ("extend", False)
    assert [message.item.raw for message in thread.live()] == chat(f"{stored} {live}")


def test_a_window_from_inside_a_step_gets_the_rest_of_it() -> None:
    """Its call comes from the store, so its other results do too."""
    thread = build_thread(STEP)
    assert (
        forwarded_words(thread.ask(chat("rz rx a1 u2 a2 u3"))[2])
        == "[u1] [cx+y+z] [ry] rz rx a1 u2 a2 u3"
    )


@pytest.mark.parametrize(
    ("stored", "sent", "case", "live"),
    [
        pytest.param("u1 cx+y rx ry a1", "ry rx", "step_retry", "u1 cx+y rx ry aR", id="again"),
        pytest.param("u1 cx+y", "ry rx", "delta", "u1 cx+y ry rx aR", id="first"),
        pytest.param("u1 cx+y rx", "rx ry", "inserted", "u1 cx+y rx ry aR", id="one more"),
        pytest.param("u1 cx+y rx", "ry rx", "inserted", "u1 cx+y ry rx aR", id="one more ahead"),
    ],
)
def test_results_alone(stored: str, sent: str, case: str, live: str) -> None:
    """A client that sends nothing but results may order them anew, and add some."""
    thread = build_thread(stored)
    verdict, history, pieces = thread.ask(chat(sent))
    assert verdict.case == case
    assert forwarded_words(pieces) == f"[u1] [cx+y] {sent}"
    thread.close(verdict, history, chat("aR")[0])
    assert render_live_words(thread) == live
