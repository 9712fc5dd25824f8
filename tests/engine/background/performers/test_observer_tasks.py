"""The notes that an observer is shown where several threads share a log."""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.engine.background.performers.observer_tasks import list_known_notes, render_sources
from tests.memory.sharing import LABELS, Resource

A, B = LABELS["A"], LABELS["B"]


def shared() -> Resource:
    """Two entries of each thread, of which the older two are in a reflection that is ready, and a
    chunk of A's."""
    r = Resource("AB")
    for name in "ABAB":
        r.cover(name, 1)
    r.reflect(2)
    r.say("A", 1)
    r.observe("A", 1)
    return r


def test_who_is_spoken_of_is_said_in_words() -> None:
    """Section by section, the reflection's too in place of what it was made from; what is buffered
    is the thread's own."""
    r = shared()
    assert list_known_notes(r.load_joined("A")) == [
        f"In conversation {A}:\n* 🔴 A1",
        f"In conversation {B}:\n* 🔴 B2",
        f"In conversation {A}:\n* 🔴 A3",
        f"In conversation {B}:\n* 🔴 B4",
        "* 🔴 A5",
    ]


def test_a_log_of_ones_own_is_said_as_it_is() -> None:
    r = shared()
    r.leave("A")
    own = r.voices["A"].memory
    assert list_known_notes(own) == ["* 🔴 A1", "* 🔴 A3", "* 🔴 A5"]


def test_a_reflector_is_given_sections() -> None:
    r = shared()
    assert (
        render_sources(r.log[:2])
        == f'<thread id="{A}">\n* 🔴 A1\n</thread>\n\n<thread id="{B}">\n* 🔴 B2\n</thread>'
    )
    alone = replace(r.log[0], parts=())
    assert render_sources([alone, alone]) == "* 🔴 A1\n\n* 🔴 A1"
