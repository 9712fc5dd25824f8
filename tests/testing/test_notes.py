"""The rules of the scripted memory model."""

from __future__ import annotations

from om_proxy.agents import wording
from om_proxy.testing.notes import reflect

NOTES = "Date: Mar 2, 2026\n" + "\n".join(
    f"* 🟢 The planner called tool number {n} for van {n}" for n in range(20)
)


TAGS = 2  # words around the notes


def count_words(text: str) -> int:
    return len(text.split())


def test_a_reflection_keeps_to_the_size_it_is_asked_for() -> None:
    """A reflection is no longer than requested. Otherwise each reflection of the demo would cost
    four calls."""
    guidance = wording.write_guidance("strong", source_tokens=count_words(NOTES), max_tokens=60)
    assert count_words(reflect(f"{NOTES}\n\n{guidance}", count_words)) <= 60 + TAGS
    assert count_words(reflect(NOTES, count_words)) > 60 + TAGS
