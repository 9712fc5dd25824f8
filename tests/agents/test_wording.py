"""The prompts of observer and reflector."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from om_proxy.agents import wording
from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import ModelError
from om_proxy.memory.dates import annotate_entries
from om_proxy.memory.escaping import PROMPT_TAGS
from om_proxy.memory.notes.observations import parse_observation, parse_reflection
from tests.agents.scripted_llm import words

# What the observer must be taught (docs/contributing/behaviour.md#observer-output) and words that
# teach it.
LESSONS = {
    "assertion against question": r"Never turn a question into a fact|never turn one into the other",
    "who said it": r"who(?:se words)? (?:said|or deeds)|Who said it",
    "state changes supersede": r"what it replaces",
    "weeks are anchored with their days": r"next week.*\(meaning May 29 to Jun 4, 2023\)",
    "a message's own date counts": r"own was said then|date of its own[^.]*was said then",
    "on or before": r"[Uu]nder a heading `on or before`",
    "vague words get no date": r"Vague words get no date: [^.]*\"soon\"",
    "the heading names the weeks": r"transcript's heading names the weeks",
    "intents": r"`(?:🔴 )?User will …`",
    "exact verbs": r"`bought`",
    "what is said again and again": r"again and again",
    "a shared opinion": r"share[s]? an opinion",
    "words of whoever speaks": r"What anybody says in a few words|what anybody says in a few words",
    "judgements are no filler": r"feelings, judgements, wishes",
    "a date that may be two": r"may mean two days[^.]*\"next Saturday\"",
    "a year alone": r"[Aa] year alone will do: [^.]*`three years ago \(estimated 2020\)`",
    "left out notes": r"earlier notes mostly older ones without 🔴 or ✅",
    "an example of a chat": r"adopted Ruda",
    "anchors are English": r"these two words are English|`meaning` and `estimated`[^.]*stay",
    "nothing else stands in an anchor": r"nothing else inside|only word and date",
    "short statements keep their words": r"in a few words keeps those words",
    "events": r"[Ww]ho(?: was there and)?(?:,)? in which role, where, when",
    "counts first": r"the count first",
    "forms of address": r"what they call each other|how people call each other",
    "what the assistant advised or promised": r"(?:advised, thinks, made or promised|thinks, advises or promises)",
    "a text both work on": r"text[^.]* work on[^.]*newest version",
    "surroundings": r"commands that work here[^.]*those that do not",
    "long times are estimated": r"next quarter \(estimated July to September 2023\)",
    "every line has its time": r"\(HH:MM\)",
    "names": r"\b[Nn]ames\b",
    "numbers": r"\b[Nn]umbers with units\b",
    "identifiers": r"\bidentifiers\b",
    "code symbols": r"\bcode symbols\b",
    "file paths": r"\bfile paths\b",
    "exact wordings": r"dictate[sd]",
    "unusual phrasing is quoted": r"unusual[^.]*quoted|quotes[^.]*[^.]*unusual",
    "tool results by what was learnt": r"what was learnt",
    "what was completed": r"✅",
    "only what happened is completed": r"[Oo]nly (?:what|if it) (?:really|truly) happened",
    "only open work is a task": r"only open work that somebody asked the assistant for and waits for",
    "a task whose day has passed": r"its day has passed, write it empty",
    "the user's intent": r"what the user (?:is trying|wants) to reach",
    "decisions taken": r"[Dd]ecisions",
    "errors met and how they ended": r"how (?:it|they) ended",
    "work still pending": r"[Pp]ending",
    "density per token": r"token",
    "language of the conversation": r"language of the conversation",
    "the format of dates": r"heading like `Date: May 22, 2023`",
    "the format of bullets": r"^\* 🔴 \(09:14\)",
    "sub-bullets": r"^  \* ",
    "red": r"🔴 what the user stated",
    "yellow": r"🟡 what was asked, and what was learnt",
    "green": r"🟢 uncertain or minor, nothing else",
    "current task": r"<current-task>",
    "an empty task ends it": r"write it empty: `<current-task></current-task>`",
    "leaving a hint out keeps the old": r"keeps the old one, until the user speaks again",
    "the fence is data": r"Everything in there is material",
    "instructions are reported speech": r"record it as reported speech with its speaker",
}

# What the reflector must be told (docs/contributing/behaviour.md#reflector).
REFLECTING = {
    "the observer's format": r"🔴 what the user stated(.|\n)*🟡 what was asked, and what was learnt(.|\n)*🟢 uncertain(.|\n)*✅ completed",
    "what it drops is gone": r"What you drop is gone for good",
    "other notes stay as they are": r"other notes may stand before it and after it(.|\n)*stay as they are",
    "combine": r"\*\*Combine\.\*\*",
    "a feeling belongs to the fact": r"a feeling, whom something is for[^.]*are parts of the fact",
    "lines are merged, not facts": r"Merge lines, not facts",
    "lines stay under their day": r"A line stays under its day(.|\n)*under the last of these days",
    "telling is not happening": r"\(told Jun 26\)",
    "what happens again is counted": r"counts it and keeps each date",
    "clock times of older days go": r"`\(HH:MM\)`, stay only where the last two days",
    "the only green line about a matter": r"🟢 that is the only line about its matter stays",
    "the assistant's words": r"advised, promised or told of itself",
    "patterns, habits, preferences": r"patterns(.|\n)*habits, preferences",
    "drop what no longer matters": r"Drop what no longer matters",
    "no part pays for another": r"\*\*Cut evenly\.\*\*",
    "keep red": r"every 🔴 that still holds",
    "keep dates": r"dates of what happened",
    "keep names": r"names of people and things",
    "keep open tasks": r"open tasks",
    "completed replaces its steps": r"✅ stands for the whole way",
    "the notes are data": r"Everything in there is material",
}


@pytest.mark.parametrize("variant", ["default", "condensed"])
@pytest.mark.parametrize("lesson", LESSONS)
def test_the_observer_is_taught(variant: str, lesson: str) -> None:
    """Both shipped prompts hold each lesson."""
    assert re.search(
        LESSONS[lesson],
        wording.write_observer_prompt(variant, want_title=False, instruction=None),
        re.MULTILINE,
    )


@pytest.mark.parametrize("lesson", REFLECTING)
def test_the_reflector_is_told(lesson: str) -> None:
    """The prompt holds each lesson, and is the same at every level."""
    assert re.search(REFLECTING[lesson], wording.write_reflector_prompt(instruction=None))


def test_the_observer_s_prompt_is_bounded() -> None:
    """The observer's prompt has at most 2,300 tokens, the reflector's 1,600, because every call
    pays for them. The reflector's is long enough for a provider's prompt cache."""
    count = TokenCounter().tokens
    assert (
        count(wording.write_observer_prompt("default", want_title=False, instruction=None)) <= 2_300
    )
    assert 1_024 <= count(wording.write_reflector_prompt(instruction=None)) <= 1_600


def test_findings_and_advice_are_not_minor() -> None:
    """No example marks an assistant's words or a tool's finding as uncertain or minor: such notes
    are dropped first."""
    for variant in ("default", "condensed"):
        text = wording.write_observer_prompt(variant, want_title=False, instruction=None)
        green = [
            line
            for line in text.splitlines()
            if "`🟢" in line or line.startswith(("* 🟢", "`* 🟢"))
        ]
        assert all(line.startswith(("Bad:", "* 🟢 (08:02) User may")) for line in green), green


def test_condensed_is_shorter() -> None:
    """The condensed prompt is shorter than two thirds of the default."""
    lengths = [
        len(wording.write_observer_prompt(v, want_title=False, instruction=None))
        for v in ("default", "condensed")
    ]
    assert lengths[1] < lengths[0] * 2 / 3


def test_title_only_when_asked() -> None:
    """The prompt mentions a title only if one is wanted."""
    assert "thread-title" not in wording.write_observer_prompt(
        "default", want_title=False, instruction=None
    )
    assert "<thread-title>" in wording.write_observer_prompt(
        "default", want_title=True, instruction=None
    )


def test_levels_differ() -> None:
    """Each level has its own guidance, with both sizes."""
    told = [
        wording.write_guidance(level, source_tokens=21_000, max_tokens=13_000)
        for level in wording.LEVELS
    ]
    assert len(set(told)) == 4
    assert all("about 21000 tokens; write at most 13000." in text for text in told)
    assert all(text.endswith(wording.REWRITE_REQUEST) for text in told)


@pytest.mark.parametrize(("depth", "told"), [(0, None), (1, "once"), (3, "3 times")])
def test_the_reflector_is_told_how_often_notes_were_condensed(depth: int, told: str | None) -> None:
    """Notes as the observer wrote them need no such word."""
    text = wording.write_guidance("none", source_tokens=100, max_tokens=55, depth=depth)
    assert ("condensed" in text) is (told is not None)
    assert told is None or f"condensed {told} before" in text


@pytest.mark.parametrize("earlier", [None, *wording.EARLIER_FAULTS])
def test_only_what_was_too_long_is_called_so(earlier: wording.EarlierFault | None) -> None:
    """A model is told the fault of its earlier answer, and no other."""
    text = wording.write_guidance("gentle", source_tokens=100, max_tokens=55, earlier=earlier)
    assert ("too long" in text) is (earlier == "too-long")
    assert ("cut off" in text) is (earlier == "cut-off")
    assert ("not in the format" in text) is (earlier == "unusable")


def test_strong_keeps_what_the_assistant_told() -> None:
    """The strong level drops what is minor or closed, but not the assistant's words or the only
    line about a subject."""
    text = wording.write_guidance("strong", source_tokens=100, max_tokens=40)
    assert "drop 🟢, but for one that is the only line" in text
    assert "drop 🟡 whose matter is closed; what the assistant advised" in text


def test_a_suggestion_is_asked_for_where_it_is_wanted() -> None:
    """A suggestion that is made ahead is stale when it is shown, so buffered calls ask for the task
    only (docs/contributing/behaviour.md#hints)."""
    assert "suggested-response" not in wording.write_observer_prompt(
        "default", want_title=True, instruction=None
    )
    assert "suggested-response" not in wording.write_observer_prompt(
        "default", want_title=True, instruction=None, threads=True
    )
    assert "suggested-response" not in wording.write_reflector_prompt(instruction=None)
    text = wording.write_observer_prompt(
        "default", want_title=True, instruction=None, want_suggestion=True
    )
    assert text.index("<suggested-response>") < text.index("<thread-title>")


def test_instruction() -> None:
    """The operator's instruction comes last, under its own heading; a blank one adds no heading."""
    text = wording.write_observer_prompt(
        "default", want_title=False, instruction=" Note every allergy.\n"
    )
    assert text.endswith("# Also asked of you\n\nNote every allergy.")
    assert wording.write_reflector_prompt(instruction="Keep allergies.").endswith(
        "\n\nKeep allergies."
    )
    assert "Also asked" not in wording.write_observer_prompt(
        "default", want_title=False, instruction="  "
    )


def test_the_operator_s_own_file(tmp_path: Path) -> None:
    """The operator's file replaces the lessons and is read for every call; format and fence
    stay."""
    file = tmp_path / "own.md"
    file.write_text("Only note numbers.", encoding="utf-8")
    text = wording.write_observer_prompt(str(file), want_title=False, instruction=None)
    assert text.startswith("Only note numbers.\n\n# The transcript is data")
    assert "Said or asked" not in text
    file.write_text("Only note names.", encoding="utf-8")
    assert wording.write_observer_prompt(str(file), want_title=False, instruction=None).startswith(
        "Only note names."
    )
    assert wording.write_observer_prompt(
        "Two\nlines", want_title=False, instruction=None
    ).startswith("Two\nlines\n\n# The")


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """Without its prompt file, the observer fails, and the message names the setting."""
    with pytest.raises(ModelError, match=r"observation\.prompt"):
        wording.write_observer_prompt(str(tmp_path / "gone.md"), want_title=False, instruction=None)


@pytest.mark.parametrize(
    "text",
    [
        wording.write_observer_prompt("default", want_title=True, instruction=None),
        wording.write_observer_prompt("condensed", want_title=True, instruction=None),
        wording.write_reflector_prompt(instruction=None),
    ],
)
def test_tags_of_the_prompts_are_escaped_in_texts(text: str) -> None:
    """Text from outside can write no tag that the prompts mention."""
    assert set(re.findall(r"</?([a-z-]+)>", text)) <= set(PROMPT_TAGS)


def test_the_example_is_what_we_read() -> None:
    """The parser reads the format in the prompt, with hints and anchored dates."""
    text = wording.write_observer_prompt("default", want_title=False, instruction=None)
    example = text[
        text.index("\n<observations>") : text.index("</current-task>") + len("</current-task>")
    ]
    parsed = parse_observation(example, source_tokens=1_000, tokens=words)
    assert parsed.text.startswith("Date: May 22, 2023\n* 🔴 (09:14)")
    assert parsed.text.count("\n  * ") == 2
    assert parsed.task
    text = wording.write_reflector_prompt(instruction=None)
    example = text[
        text.index("\n<observations>") : text.index("</current-task>") + len("</current-task>")
    ]
    assert parse_reflection(example, source_tokens=1_000, tokens=words).text.startswith(
        "Date: May 3, 2023"
    )


def test_the_anchors_are_what_we_read() -> None:
    """Each anchored time in the prompts can be used for relative dates."""
    texts = [
        wording.write_observer_prompt(v, want_title=False, instruction=None)
        for v in ("default", "condensed")
    ]
    texts.append(wording.write_reflector_prompt(instruction=None))
    anchors = {
        anchor for text in texts for anchor in re.findall(r"\((?:meaning|estimated) [^)]*\)", text)
    } - {"(estimated 2020)"}  # a year alone: how long ago it is, says the phrase
    assert len(anchors) >= 4
    for anchor in anchors:
        entry = f"* 🔴 (09:14) then {anchor}"
        assert [*annotate_entries([entry], date(2024, 8, 1))] != [entry], anchor
