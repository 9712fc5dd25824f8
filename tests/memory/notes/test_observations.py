"""A memory model's answer is read leniently, and a refused one is named."""

import random
import re
import time
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import Unusable
from om_proxy.memory.escaping import escape
from om_proxy.memory.notes.observations import (
    MAX_HINT_CHARS,
    MAX_TITLE_CHARS,
    ParsedNotes,
    parse_observation,
    parse_reflection,
)
from tests.support.counting import TIMES, measure_cpu_s


def words(text: str) -> int:
    return len(text.split())


def read(answer: str, source_tokens: int = 10_000) -> ParsedNotes:
    return parse_observation(answer, source_tokens=source_tokens, tokens=words)


NOTES = "Date: May 22, 2023\n* 🔴 (10:00) User grows plums\n  * 12 trees\n* ✅ (10:05) Order placed"
HALVES = NOTES[: NOTES.index("  * 12")].rstrip(), NOTES[NOTES.index("  * 12") :]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(f"<observations>\n{NOTES}\n</observations>", id="as asked"),
        pytest.param(f"<Observations>\n{NOTES}\n</OBSERVATIONS>", id="any case"),
        pytest.param(f"  <observations >\n\n{NOTES}\n\n  </observations>  ", id="blanks"),
        pytest.param(
            f"<observations>\r\n{NOTES}\r\n</observations>".replace("\n* ", "\r\n* "),
            id="foreign line ends",
        ),
        pytest.param(f'<observations type="new">\n{NOTES}\n</observations>', id="attributes"),
        pytest.param(f"```xml\n<observations>\n{NOTES}\n</observations>\n```", id="fenced"),
        pytest.param(f"<observations>\n```\n{NOTES}\n```\n</observations>", id="a fence inside"),
        pytest.param(
            f"Here they are:\n\n<observations>\n{NOTES}\n</observations>\n\nAnything else?",
            id="prose around",
        ),
        pytest.param(f"<observations>\n{NOTES}", id="unclosed"),
        pytest.param(
            f"<observations>\n{NOTES}</observations>", id="closed at the end of the last line"
        ),
        pytest.param(f"<observations>{NOTES}</observations>", id="opened before the first line"),
        pytest.param(f"Sure. <observations>{NOTES}</observations> That is all.", id="within lines"),
        pytest.param(
            f"<observations>\n<observations>\n{NOTES}\n</observations>\n</observations>",
            id="twice around",
        ),
        pytest.param(
            f"<observations>\n{HALVES[0]}\n</observations>\n\n<observations>\n{HALVES[1]}",
            id="two blocks",
        ),
        pytest.param(
            f"I use <observations> tags.\n<observations>\n{NOTES}\n</observations>",
            id="named before",
        ),
        pytest.param(
            f"<think>\n<observations>\n* draft\n</observations>\n</think>\n<observations>\n{NOTES}",
            id="thought",
        ),
        pytest.param(
            f"* a draft\n</think>\n\n<observations>\n{NOTES}\n</observations>",
            id="thought, opened elsewhere",
        ),
        pytest.param(
            f"<observations>\n<think>\n* a draft</think>\n{NOTES}\n</observations>",
            id="thought inside",
        ),
        pytest.param(
            f"<think>* one</think>\n<thinking>* two</thinking><observations><think>* three</think>\n{NOTES}",
            id="thought three times",
        ),
        pytest.param(
            f"<|channel|>analysis<|message|><observations>\n* a draft\n</observations><|end|>"
            f"<|start|>assistant<|channel|>final <|constrain|>x<|message|><observations>\n{NOTES}\n"
            "</observations><|return|>",
            id="channels",
        ),
        pytest.param(
            f"analysis* a draft\n* moreassistantfinal<observations>\n{NOTES}\n</observations>",
            id="channels without their tokens",
        ),
        pytest.param(
            f'<observations>\n<thread id="7">\n{NOTES}\n</thread>\n</observations>',
            id="a thread tag",
        ),
        pytest.param(NOTES, id="no tags"),
        pytest.param(
            f"# Notes\n\nThese I took:\n{NOTES}\n\nThat is all.", id="no tags, prose around"
        ),
        pytest.param(f"<observations></observations>\n{NOTES}", id="beside the tags"),
    ],
)
def test_form_is_lenient(answer: str) -> None:
    """The same notes are read out of every form models give them, with their indentation."""
    assert read(answer).text == NOTES


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("<observations>* 🔴 a</observations>", "* 🔴 a"),
        (
            "<observations>Date: May 1, 2023 * 🔴 a * ✅ b</observations>",
            "Date: May 1, 2023\n* 🔴 a\n* ✅ b",
        ),
        ("<observations>- a\n- b</observations>", "- a\n- b"),
        ("<observations>\n1. a\n2) b\n</observations>", "1. a\n2) b"),
        ("<observations>\n🔴 (10:00) a\n</observations>", "🔴 (10:00) a"),
        ("<observations>\n* a\n\n\n\n* b  \n</observations>", "* a\n\n* b"),
        (
            "<observations>\n* 🔴 asked about <observations> and </observations> in prompts\n* b\n</observations>",
            "* 🔴 asked about <observations> and </observations> in prompts\n* b",
        ),
        (
            "<observations>\n* 🔴 ends its file with </observations>\n* b\n</observations>",
            "* 🔴 ends its file with </observations>\n* b",
        ),
        (
            "<observations>\n<observation>* a</observation>\n<observation>* b</observation>\n</observations>",
            "* a\n* b",
        ),
        ("<observations>\n* a\n<current-task>x</current-task>\n* b\n</observations>", "* a\n\n* b"),
        (
            "<observations>\n* 🔴 a `</think>` tag\n* b\n</observations>",
            "* 🔴 a `</think>` tag\n* b",
        ),
        (
            "<observations>\n* 🔴 writes &lt;observations> by hand\n</observations>",
            "* 🔴 writes <observations> by hand",
        ),
        (
            "<observations>\n* 🔴 &lt;b&gt; &amp; List<str>\n</observations>",
            "* 🔴 &lt;b&gt; &amp; List<str>",
        ),
    ],
)
def test_what_is_kept(answer: str, text: str) -> None:
    """Tags that are talked about are text; what was escaped for the model is as it was said."""
    assert read(answer).text == text


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "empty"),
        (" \n\n ", "empty"),
        ("<observations>\n</observations>", "empty"),
        ("<observations></observations>\n<current-task>x</current-task>", "empty"),
        ("<observations>\n* None\n</observations>", "empty"),
        ("* No new observations.", "empty"),
        ("<think>I should begin with * 🔴 the", "empty"),
        ("<observations>\n<thought>\n* 🔴 a draft\n</observations>", "empty"),
        ("<|channel|>analysis<|message|><observations>\n* 🔴 a draft\n</observations>", "empty"),
        ("I'm sorry, but I can't help with that.", "refusal"),
        ("I’m sorry, I can’t do that. I could:\n- tell a joke\n- sing", "refusal"),
        ("<observations>\nI cannot assist with this request.\n</observations>", "refusal"),
        ("<observations>\n* I'm unable to process this content.\n</observations>", "refusal"),
        ("There is nothing here that I would call worth noting.", "prose"),
        ('{"error": {"message": "overloaded", "code": 529}}', "prose"),
        ("Error: upstream timed out", "prose"),
        ("<observations>\nThe user said hello.\n</observations>", "prose"),
        ("* \n* 🔴\n- ", "prose"),
        ("---\n**bold**\n-> arrow", "prose"),
        (
            "<observations>\n"
            + "* 🟢 (09:00) The same line over and over\n" * 400
            + "</observations>",
            "loop",
        ),
        ("* 🔴 " + "word " * 20_000, "loop"),
    ],
)
def test_substance_is_strict(answer: str, reason: str) -> None:
    """An answer that may not enter a memory is refused with its reason, and without its text."""
    with pytest.raises(Unusable) as caught:
        read(answer)
    assert re.findall("empty|refusal|prose|loop|oversized", str(caught.value)) == [reason]


@pytest.mark.parametrize(
    ("size", "source", "usable"),
    [
        (1_000, 10, True),
        (1_001, 500, False),
        (1_001, 501, True),
        (3_000, 1_500, True),
        (3_001, 1_500, False),
    ],
)
def test_longer_than_its_source(size: int, source: int, usable: bool) -> None:
    """Above 1 000 tokens, notes may be at most twice as long as what they are about."""
    rng = random.Random(size)
    lines = [f"* {' '.join(str(rng.random()) for _ in range(9))}" for _ in range(size // 10)]
    answer = "\n".join(lines) + " x" * (size - words("\n".join(lines)))
    if usable:
        assert words(read(answer, source).text) == size
    else:
        with pytest.raises(Unusable, match="oversized"):
            read(answer, source)


def test_a_refusal_in_a_note_is_no_refusal() -> None:
    """An apology before the block, or reported in it, does not make the notes unusable."""
    answer = "I'm sorry for the wait.\n<observations>\n* 🟢 I can't, said the assistant\n* 🔴 User insists\n</observations>"
    assert read(answer).text.count("\n") == 1


@pytest.mark.parametrize(
    ("rest", "task", "suggestion", "title"),
    [
        ("", None, None, None),
        (
            "<current-task>\nPrune\n</current-task>\n<suggested-response>\nAsk\nwhen\n</suggested-response>",
            "Prune",
            "Ask\nwhen",
            None,
        ),
        (
            "<current-task>Prune</current-task> <suggested-response>Ask</suggested-response>",
            "Prune",
            "Ask",
            None,
        ),
        (
            "<CURRENT_TASK>Prune</CURRENT_TASK><thread-title>'Plums'</thread-title>",
            "Prune",
            None,
            "Plums",
        ),
        ("<current-task>\nPrune", "Prune", None, None),
        ("<current-task>\nPrune\n<suggested-response>\nAsk", "Prune", "Ask", None),
        ("<current-task></current-task><thread-title>None</thread-title>", "", None, None),
        (
            "<current-task>none.</current-task><current-task>Prune</current-task>",
            "Prune",
            None,
            None,
        ),
        (
            "<current-task>A</current-task>\n<current-task>B</current-task>\n<current-task>\n</current-task>",
            "B",
            None,
            None,
        ),
        (
            "<thread-title>\n**Plums and\nother trees**\n</thread-title>",
            None,
            None,
            "Plums and other trees",
        ),
        (
            "<current-task>close &lt;/current-task></current-task>",
            "close </current-task>",
            None,
            None,
        ),
        ("<suggested-response>" + "Again. " * 200 + "</suggested-response>", None, None, None),
    ],
)
@pytest.mark.parametrize("place", ["after", "before", "inside"])
def test_hints(
    rest: str, task: str | None, suggestion: str | None, title: str | None, place: str
) -> None:
    """They are found wherever they stand; one that says nothing, or only repeats itself, is as if
    left out."""
    inside = f"\n{rest}" if place == "inside" else ""
    block = f"<observations>\n{NOTES}{inside}\n</observations>"
    answer = {"after": f"{block}\n{rest}", "before": f"{rest}\n{block}", "inside": block}[place]
    parsed = read(answer)
    assert (parsed.text, parsed.task, parsed.suggestion, parsed.title) == (
        NOTES,
        task,
        suggestion,
        title,
    )


def test_a_hint_in_the_middle_of_a_line() -> None:
    """It is found outside of the notes, where nothing is quoted."""
    parsed = read(
        f"<observations>\n{NOTES}\n</observations> Then <current-task>Prune</current-task> it is"
    )
    assert parsed == ParsedNotes(NOTES, "Prune")


def test_a_hint_that_is_talked_about() -> None:
    """A tag quoted in a note is no hint."""
    parsed = read(
        "<observations>\n* 🔴 User writes <current-task>x</current-task> in prompts\n</observations>"
    )
    assert parsed == ParsedNotes("* 🔴 User writes <current-task>x</current-task> in prompts")


def test_long_hints_are_cut() -> None:
    """They are in every prompt: 2 000 characters at most, a title 100."""
    rng = random.Random(1)
    long = " ".join(str(rng.random()) for _ in range(500))
    parsed = read(
        f"<observations>\n* a\n</observations>\n<current-task>{long}</current-task><thread-title>{long}</thread-title>"
    )
    assert parsed.task is not None
    assert len(parsed.task) == MAX_HINT_CHARS
    assert parsed.task.endswith("…")
    assert len(parsed.title or "") <= MAX_TITLE_CHARS


def test_a_reflection_is_read_alike() -> None:
    """A reflection is read like an observation, but names no thread."""
    answer = f"<observations>\n{NOTES}\n</observations><current-task>Prune</current-task><thread-title>T</thread-title>"
    assert parse_reflection(answer, source_tokens=100, tokens=words) == ParsedNotes(NOTES, "Prune")
    with pytest.raises(Unusable, match="prose"):
        parse_reflection("All of it is short already.", source_tokens=100, tokens=words)


LINES = st.lists(
    st.sampled_from(
        [
            "* 🔴 a <b>",
            "  * sub [0] -> x",
            "Date: May 1, 2023",
            "* </observations> said",
            "- <current-task>",
        ]
    ),
    min_size=1,
    max_size=6,
)


@given(LINES)
def test_what_a_model_copies_comes_back(lines: list[str]) -> None:
    """Notes that quote our tags survive being shown, copied and read again, as often as it
    happens."""
    notes = "\n".join(["* 🔴 first", *lines])
    for _ in range(3):
        assert read(f"<observations>\n{escape(notes)}\n</observations>").text == notes


@given(st.text(), st.integers(0, 100))
def test_any_answer_is_read_or_refused(answer: str, source: int) -> None:
    """Nothing but `Unusable` is ever raised, and what is usable holds a bullet."""
    try:
        parsed = read(answer, source)
    except Unusable:
        return
    assert re.search(r"^\s*([*+•‣◦–—-]|\d+[.)]|[🔴🟡🟢✅])", parsed.text, re.MULTILINE)


PIECES = [
    "<observations>",
    "</observations>",
    "<current-task>",
    "</current-task>",
    "```",
    "\n",
    " ",
    "* a",
    "prose",
    "<",
    ">",
    "<think>",
    "</think>",
    "<|channel|>final<|message|>",
    "<|channel|>",
]


@given(st.lists(st.sampled_from(PIECES), max_size=15).map("".join))
def test_any_heap_of_tags_is_read_or_refused(answer: str) -> None:
    """However tags are nested and torn, nothing but a missing bullet makes a short answer
    unusable."""
    try:
        read(answer)
    except Unusable as exc:
        assert "loop" not in str(exc)  # noqa: PT017 — the point is which refusals are possible
        assert "oversized" not in str(exc)  # noqa: PT017 — as above


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("<observations>" * 30_000, id="opening tags"),
        pytest.param("<observations></observations>" * 15_000 + "\n* a", id="empty blocks"),
        pytest.param("<current-task>x" * 30_000, id="hints"),
        pytest.param("<" + " " * 400_000, id="blanks in a tag"),
        pytest.param("* " + " " * 40_000 + "\n" + "\n" * 300_000, id="empty lines"),
        pytest.param("```\n" * 100_000, id="fences"),
        pytest.param("<observations>" + "\t" * 400_000 + "x", id="tabs"),
        pytest.param("!" * 400_000 + "x", id="marks"),
        pytest.param(
            "<observations>\n* a\n</observations><current-task>" + "!" * 400_000 + "x",
            id="marks in a hint",
        ),
        pytest.param(
            "<observations>\n* 🔴 a " + "“a " * 130_000 + '"', id="quotations in an unclosed block"
        ),
    ],
)
def test_reading_is_linear(answer: str) -> None:
    """400 kB of whatever a model may be brought to write are read within two seconds."""
    began = time.process_time()
    with suppress(Unusable):
        read(answer)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("marks", [".", "* ", "🔴", "\u200b"])
def test_marks_cost_little_more_than_letters(marks: str) -> None:
    """Before a refusal there may be marks; what no refusal follows is not searched for each of its
    wordings at every mark. Nobody else's Python runs while a pattern is matched."""

    def cost(piece: str) -> float:
        return measure_cpu_s(partial(judged, piece * (400_000 // len(piece))))

    assert cost(marks) < 2 * TIMES * max(cost("a"), 0.002)


def judged(answer: str) -> None:
    with suppress(Unusable):
        read(answer)


@pytest.mark.parametrize("marks", ["", "…", "* \n\n> ", "!" * 1_000])
def test_a_refusal_behind_marks(marks: str) -> None:
    """It is one all the same."""
    with pytest.raises(Unusable, match="refusal"):
        read(f"{marks}I'm sorry, I can't help with that.")
