"""Small requests of coding agents, told from their conversation by what they repeat."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.model import Memory, Style
from om_proxy.memory.transcript.reconcile import (
    Hints,
    History,
    may_be_side_request,
    repeats_nothing,
)
from om_proxy.memory.transcript.stored_transcript import NEED_OUTLINE
from tests.memory.clients import Thread, build_thread, chat

STORY = "u1 cx rx a1 u2 a2"


def agent(story: str = STORY) -> Thread:
    """A thread whose client resends its history and offers tools."""
    thread = build_thread(story)
    thread.memory = replace(thread.memory, style="full", offers_tools=True)
    return thread


def is_side(thread: Thread, sent: str, hints: Hints = Hints()) -> bool:
    asked = thread.read_sent(chat(sent))
    if not may_be_side_request(thread.memory, asked, hints):
        return False
    found = repeats_nothing(thread.stored_transcript(), asked)
    return (
        repeats_nothing(thread.stored_transcript(complete=True), asked) is True
        if found is NEED_OUTLINE
        else found is True
    )


@pytest.mark.parametrize(
    ("sent", "side"),
    [
        ("utitle", True),
        ("ugenerate utitle", True),
        ("stitle ugenerate", True),  # a system message among them
        (STORY + " u3", False),
        ("u1 cx rx a1 uedited", False),
        ("u1", False),
        ("u2 u3", False),  # a window
        ("usummary u2 a2 u3", False),  # compacted by its client
        (
            "usummarise u1",
            False,
        ),  # it tells the conversation: a title, or a compaction; the patterns know titles
        ("uedited aedited u3", False),  # a conversation of its own: its first message was edited
        ("rx", False),
        ("ry", False),
        ("unew cx", False),
    ],
)
def test_what_repeats_nothing_is_a_side_request(sent: str, side: bool) -> None:
    """A side request asks, and nothing of it is known."""
    assert is_side(agent(), sent) is side


@pytest.mark.parametrize("style", ["unknown", "window", "thin"])
def test_clients_that_repeat_nothing_anyway(style: Style) -> None:
    """A thin client's turn, and one of a client we do not know yet, is never taken for one."""
    thread = agent()
    thread.memory = replace(thread.memory, style=style)
    assert not is_side(thread, "unew")


def test_clients_without_tools() -> None:
    """Nothing tells a small request from a message that stands alone."""
    thread = agent()
    thread.memory = replace(thread.memory, offers_tools=False)
    assert not is_side(thread, "unew")


@pytest.mark.parametrize("history", ["full", "window", "new"])
def test_the_client_says_what_its_messages_are(history: History) -> None:
    """Nothing is guessed with a hint: another device says `new` and has its memory."""
    assert not is_side(agent(), "unew", Hints(history=history))


def test_an_empty_thread_has_no_side_requests() -> None:
    """Its first request is one like any other."""
    thread = Thread()
    assert not may_be_side_request(thread.memory, thread.read_sent(chat("u1")), Hints())


def test_what_was_taken_back_is_known() -> None:
    """Going back to a superseded branch is no side request; for that the outline is asked."""
    thread = build_thread("u1 a1 u2 a2")
    thread.turn(chat("u1 a1 uedited"), chat("aedited")[0])
    thread.memory = replace(thread.memory, style="full", offers_tools=True)
    assert repeats_nothing(thread.stored_transcript(), thread.read_sent(chat("u2"))) is NEED_OUTLINE
    assert not is_side(thread, "u2")
    assert is_side(thread, "utitle")


def test_what_is_not_loaded_is_asked_for() -> None:
    """Only the newest messages of a long thread are loaded."""
    thread = agent()
    known = replace(thread.stored_transcript(), live=thread.stored_transcript().live[2:], missing=2)
    assert repeats_nothing(known, thread.read_sent(chat("u1"))) is NEED_OUTLINE
    assert repeats_nothing(known, thread.read_sent(chat("u2"))) is False
    assert not is_side(thread, "u1")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(STORY.split()), min_size=1, max_size=4),
    st.lists(st.sampled_from(["utitle", "unew"])),
)
def test_a_known_message_is_proof(known: list[str], more: list[str]) -> None:
    """A main request is never taken for a side request while it shows anything of the thread."""
    assert not is_side(agent(), " ".join([*more, *known, *more]))


def test_a_new_memory_offers_none() -> None:
    """Threads stored before this was kept are as they were until their client's next turn."""
    assert Memory(key=build_thread("u1").memory.key).offers_tools is False
