"""`scripts/bench shared` in small: recordings made by hand, through the real proxy."""

from __future__ import annotations

import pytest

from tests.bench.shared_notes import IDLE, Recording, Session, merged, noted, played

DAY = 86_400.0
TURNS = [
    {"speaker": "Ada", "dia_id": "D1:1", "text": "The dock is closed."},
    {"speaker": "Ada", "dia_id": "D1:2", "text": "Until May."},
    {"speaker": "Bo", "dia_id": "D1:3", "text": "Noted."},
    {"speaker": "Ada", "dia_id": "D1:4", "text": "Bye."},
]


def recording(sessions: int, turns: int) -> Recording:
    made, marks = [], list[str]()
    for s in range(1, sessions + 1):
        said = [
            {
                "speaker": "Ada" if t % 2 else "Bo",
                "dia_id": f"D{s}:{t}",
                "text": f"Crate {t} of day {s} is red. " * 12,
            }
            for t in range(1, turns + 1)
        ]
        made.append(Session(1_700_000_000 + s * DAY, merged(said, "Ada")))
        marks += [turn["dia_id"] for turn in said]
    return Recording(made, marks)


def test_turns_become_messages_that_alternate() -> None:
    assert merged(TURNS, "Ada") == [
        {"role": "user", "content": "[D1:1] The dock is closed.\n[D1:2] Until May."},
        {"role": "assistant", "content": "[D1:3] Noted."},
        {"role": "user", "content": "[D1:4] Bye."},
        {"role": "assistant", "content": "Yes."},
    ]


def test_notes_keep_every_mark_under_its_thread() -> None:
    asked = '# New messages\n<thread id="0123456789abcdef">\nUser (10:00): [D1:1] a\n</thread>'
    assert (
        '<thread id="0123456789abcdef">\nDate: May 8, 2023\n* 🟡 (10:00) [D1:1] a\n</thread>'
        in noted(asked)
    )
    assert "[D1:2] b" in noted("# New messages\nUser (10:00): [D1:2] b")


@pytest.mark.parametrize("sessions", [1, 4])
async def test_a_new_thread_after_a_pause_is_told_everything(sessions: int) -> None:
    """Far below T: all evidence in notes, none lost on the way, and no prefix of a warm thread
    broken."""
    found = await played(recording(sessions, 12), IDLE)
    assert found.evidence == sessions * 12
    assert (found.told, found.breaks) == (found.evidence, 0)
    assert found.warm == sessions * 5
    assert found.log > 0
