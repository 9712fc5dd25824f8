"""The scripted memory model writes notes of the length that it is asked for."""

from __future__ import annotations

from om_proxy.memory.notes.sections import split_by_thread
from om_proxy.proof.scripted_notes import answer_by_thread, draw_notes, list_bullets

TRANSCRIPT = "\n".join(
    [
        "Date: May 22, 2023",
        *(f"User (09:{n:02}): the dock {n} takes no van above {n} metres" for n in range(50)),
    ]
)


def by_words(text: str) -> int:
    return len(text.split())


def test_note_taker_keeps_its_length() -> None:
    """Notes come to the tokens asked for, within one piece, and are list_bullets from the whole
    transcript."""
    notes = draw_notes(TRANSCRIPT, 120, 60, by_words)
    assert 100 <= by_words(notes) <= 140
    assert "the dock 0 " in notes
    assert any(f"the dock {n} " in notes for n in range(40, 50))


def test_note_taker_says_nothing_twice() -> None:
    """A repeated line is one piece: notes that repeat themselves are refused as a loop."""
    assert list(
        list_bullets("User (09:00): yes, let us do it so\nUser (09:01): yes, let us do it so\n")
    ) == ["* 🟡 (10:00) yes, let us do it so"]


RESULTS = "\n".join(
    [
        "Tool result ls (09:01):",
        *(f"  crate {n} stands at dock {n} since {n} days" for n in range(50)),
    ]
)


def test_note_taker_tells_results_from_text() -> None:
    """What a tool returned is marked as that to its last line, and has a length of its own."""
    both = f"{TRANSCRIPT}\n{RESULTS}\nAssistant (09:02): all fifty of them are there"
    assert [line[2] for line in list_bullets(both)] == ["🟡"] * 50 + ["🟢"] * 50 + ["🟡"]
    notes = draw_notes(both, 400, 80, by_words).splitlines()
    sizes = {mark: sum(by_words(line) for line in notes if line[2] == mark) for mark in "🟡🟢"}
    assert 180 <= sizes["🟡"] <= 240, "half of the transcript is text"
    assert 30 <= sizes["🟢"] <= 50


def test_note_taker_answers_threads_apart() -> None:
    """Each section holds the notes of its own thread: without sections, nobody knows whose they
    are."""
    first, second = "a" * 16, "b" * 16
    new = (
        f'<thread id="{first}">\nUser (09:00): the dock 1 takes no van\n</thread>\n'
        f'<thread id="{second}">\nUser (09:00): the dock 2 takes any van\n</thread>\n'
    )
    notes = answer_by_thread(new, lambda text: "\n".join(list_bullets(text)))
    assert split_by_thread(notes, {first, second}) == {
        first: "\n* 🟡 (10:00) the dock 1 takes no van\n",
        second: "\n* 🟡 (10:00) the dock 2 takes any van\n",
    }
