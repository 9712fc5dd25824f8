"""The demo's conversation holds together."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from om_proxy.cli.demo.story import INSTRUCTIONS, Story, load_story
from om_proxy.cli.demo.world import World, draw_dairy_orders, draw_plan, report_dry_run
from om_proxy.testing import notes
from om_proxy.testing.scripted import UNKNOWN_ANSWER, cue, improvise

FACT = "the dock at Quarry Steps takes no van higher than 2.85 m"


@pytest.fixture(scope="module")
def story() -> Story:
    return load_story()


def list_messages(story: Story) -> list[dict[str, Any]]:
    return [
        dict(m)
        for turn in story.turns
        for m in ({"role": "user", "content": turn.said}, *turn.follows)
    ]


def list_spoken(story: Story) -> list[dict[str, Any]]:
    return [m for m in list_messages(story) if m["role"] != "tool" and m.get("content")]


def test_a_long_conversation_over_five_days(story: Story) -> None:
    """The story has 60 handwritten messages or more, on five days in order; most of its text comes
    from tools."""
    days = [turn.day for turn in story.turns]
    size = sum(len(json.dumps(m, ensure_ascii=False)) for m in list_messages(story))
    results = sum(len(m["content"]) for m in list_messages(story) if m["role"] == "tool")
    assert len(set(days)) == 5
    assert days == sorted(days)
    assert 60 <= len(list_spoken(story)) <= 130
    assert 150_000 < size < 330_000  # at 3 to 4 characters a token: 50 to 90 thousand tokens
    assert results > size / 2


def test_clock_moves_forward(story: Story) -> None:
    """Each turn comes after the one before it, on its own day."""
    times = [turn.at for turn in story.turns]
    assert times == sorted(set(times))
    assert [datetime.fromtimestamp(t.at, UTC).date() for t in story.turns] == [
        t.day for t in story.turns
    ]


def test_every_line_is_found_by_its_cue(story: Story) -> None:
    """No two places of the story look alike, so the newest message alone determines the next
    one."""
    cues = [cue(m) for m in list_messages(story) if m["role"] in ("user", "tool")]
    assert len(cues) == len(set(cues))
    said = [m for m in list_messages(story) if m["role"] == "assistant"]
    assert [m for m in said if m not in story.script.values()] == []


def test_every_call_has_its_result(story: Story) -> None:
    """Calls and results pair by id, in order, and each call's arguments fit the tool's schema."""
    said = list_messages(story)
    calls = [call for m in said for call in m.get("tool_calls", ())]
    assert [call["id"] for call in calls] == [
        m["tool_call_id"] for m in said if m["role"] == "tool"
    ]
    known = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in story.tools}
    for call in calls:
        assert set(json.loads(call["function"]["arguments"])) == set(
            known[call["function"]["name"]]
        )


def test_tools_answer_alike_every_time(story: Story) -> None:
    """The story is the same on every machine and in every run."""
    assert list_messages(load_story()) == list_messages(story)


def test_results_are_not_filler(story: Story) -> None:
    """Hardly any line of a tool's result occurs twice, except in test runs and files that are read
    again."""
    results = [
        m["content"]
        for m in list_messages(story)
        if m["role"] == "tool" and "PASSED" not in m["content"]
    ]
    lines = [line for text in dict.fromkeys(results) for line in text.splitlines()]
    assert len(set(lines)) > 0.85 * len(lines)


def test_suites_pass_as_often_as_the_assistant_says(story: Story) -> None:
    """The assistant quotes test runs correctly."""
    checked = 0
    for turn in story.turns:
        ran = [
            m["content"] for m in turn.follows if m["role"] == "tool" and "==== " in m["content"]
        ]
        told = re.search(
            r"(\d+) (?:tests )?passed|(?:All|the) (\d+) tests",
            turn.follows[-1]["content"] if turn.follows else "",
        )
        if ran and told:
            checked += 1
            assert f"{told[1] or told[2]} passed" in ran[-1].splitlines()[-1]
    assert checked >= 5


@pytest.mark.parametrize(
    ("asked", "figures"),
    [
        ("The noon report has accused van 7", ("7,door,95,36", "7,load,95,6")),
        ("When did the second logger appear?", ("2026-02-16,7,", "2026-02-19,11,88,88", "(16 rows)")),
        ("How often did we send a tall van", ("(9 rows)",)),
        ("Did last night's plan respect the roof?", (",408,", ",2488,")),
        ("Doesn't the database have an index", ("SCAN drops",)),
        ("Add one on site and day", ("USING INDEX drops_site_day",)),
        ("OK, write it.", ("total: 56 take, 9 convert, 7 reject",)),
        ("what will tomorrow look like", ("11,1650,680", "12,1650,880")),
        ("We had no sheets on Sunday morning", ("2026-03-08,04:20:00,,97,", "[Errno 28] No space left on device", "van 10")),
        ("Which sites were hit on Sunday?", ("(16 rows)",)),
        ("did the nights behave", ("2026-03-18,04:20:00,04:25:35,335",)),
    ],
)  # fmt: skip
def test_figures_the_assistant_quotes_stand_in_the_results(
    story: Story, asked: str, figures: tuple[str, ...]
) -> None:
    """The tools' results hold the figures that the handwritten answers quote."""
    turn = next(t for t in story.turns if asked.lower() in t.said.lower())
    results = "\n".join(m["content"] for m in turn.follows if m["role"] == "tool")
    assert [f for f in figures if f not in results] == []


def test_no_tall_van_under_the_roof_after_the_rule() -> None:
    """From the third of March on, the plans keep to the low roof."""
    world = World()
    world.advance_to(load_story().turns[-1].day)
    tall = (
        "FROM plans p JOIN vans v USING (van) WHERE p.site = 'Quarry Steps' AND v.height_m > 2.85"
    )
    before, after = (
        world.call(
            "query", {"sql": f"SELECT count(*) {tall} AND p.day {rel} '2026-03-03'"}
        ).splitlines()[1]
        for rel in ("<", ">=")
    )
    world.close()
    assert int(before) > 0
    assert after == "0"


def test_dry_run_and_plan_are_whole() -> None:
    """The report has a line for every order, and a day's plan uses all fourteen vans."""
    report = report_dry_run(draw_dairy_orders())
    assert len(report.splitlines()) == 1 + len(list(draw_dairy_orders()))
    assert {van for _, van, *_ in draw_plan(load_story().turns[0].day)} == set(range(1, 15))


def test_the_fact_is_said_once_at_the_beginning_and_asked_at_the_end(story: Story) -> None:
    """The last question is about the first message. Nobody repeats the fact in between, so a window
    of newest messages cannot hold it."""
    *before, question = [
        m for m in list_messages(story) if m["role"] in ("user", "assistant", "tool")
    ]
    assert FACT in before[0]["content"]
    assert all("2.85 m" not in (m["content"] or "") for m in before[2:])
    assert cue(question) not in story.script
    assert "2.85 m" in improvise([*before, question])
    assert improvise([*before[40:], question]) == UNKNOWN_ANSWER


def test_observer_keeps_the_fact_and_compresses(story: Story) -> None:
    """The rules write notes that are several times shorter, and that still answer the question
    after a reflection."""
    transcript = "\n".join(_render_message(m) for m in list_messages(story)[:60])
    observed = notes.observe(f"<transcript>\nDate: Mar 2, 2026\n{transcript}\n</transcript>")
    reflected = notes.reflect(observed, len)
    assert 4 < len(transcript) / len(observed) < 15
    assert len(reflected) < 0.75 * len(observed)
    assert "2.85 m" in improvise(
        [{"role": "system", "content": reflected}, list_messages(story)[-1]]
    )


def test_notes_survive_a_second_reflection() -> None:
    """Headings, marks, times and sub-bullets stay; repeated lines are written once."""
    first = "Date: Mar 2, 2026\n* 🔴 (09:04) A\n  * detail\n* 🟢 (09:05) B, which is long and of little use to anybody"
    text = first + "\nDate: Mar 3, 2026\n* 🔴 (09:06) A\n  * detail\n* ✅ C"
    assert notes.reflect(text, len) == (
        "<observations>\nDate: Mar 2, 2026\n* 🔴 (09:04) A\n  * detail\nDate: Mar 3, 2026\n* ✅ C\n</observations>"
    )


def test_observer_of_nothing_still_answers_in_form() -> None:
    """A prompt without a transcript gives one bullet in the right format."""
    assert (
        notes.observe("hello") == "<observations>\n* 🟢 Nothing of note was said.\n</observations>"
    )


def test_instructions_do_not_give_the_answer_away() -> None:
    """The system prompt holds no fact of the story."""
    assert "2.85" not in INSTRUCTIONS


def _render_message(message: dict[str, Any]) -> str:
    text = (message.get("content") or json.dumps(message.get("tool_calls"))).replace("\n", "\n  ")
    speaker = {"user": "User", "assistant": "Assistant", "tool": "Tool result query"}[
        message["role"]
    ]
    return f"{speaker} (09:04): {text}"
