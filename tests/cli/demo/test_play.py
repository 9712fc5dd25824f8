"""The demo as it is played: what it prints is what happens."""

import asyncio
import io
import os
import re
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from om_proxy.cli.demo import play, stage, summary
from om_proxy.cli.demo.play import describe_changes, play_story, trim_history
from om_proxy.cli.demo.story import Story, load_story
from om_proxy.cli.demo.summary import Bill, DemoResult, compute_costs
from om_proxy.cli.demo.table import Board, Row, render_bar, render_plain_row
from om_proxy.common.errors import OmError
from om_proxy.testing.scripted import (
    OBSERVER,
    REFLECTOR,
    UNKNOWN_ANSWER,
    Fault,
    ScriptedServer,
    message_text,
)

ROOT = Path(__file__).parents[3]
FACT = "2.85 m"
FIGURE = "look at 40 of them"  # said on Tuesday, in no note


def create_plain_console() -> Console:
    return Console(file=io.StringIO(), width=110)


def read_printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def story() -> Story:
    return load_story()


@pytest.fixture(scope="module")
def result(story: Story) -> DemoResult:
    return asyncio.run(play_story(story, create_plain_console()))


@pytest.fixture
def short(story: Story) -> Story:
    """The story's first morning and its last question."""
    return Story((*story.turns[:9], story.turns[-1]))


def count_events(result: DemoResult, what: str) -> int:
    return sum(what in event for row in result.rows for event in row.events)


def test_whole_story_with_memory(result: DemoResult, story: Story) -> None:
    """Every turn is played, memory observes, activates and reflects, and nothing is bypassed."""
    assert len(result.rows) == len(story.turns)
    assert count_events(result, "observed") >= 10
    assert count_events(result, "activated") >= 3
    assert count_events(result, "reflected") >= 1
    assert count_events(result, "degraded") == 0


def test_much_less_is_sent(result: DemoResult) -> None:
    """The sent tokens fall to less than a third, the last prompt to less than a fifth. Memory's own
    calls are not counted."""
    assert result.with_memory.prompt < result.without.prompt / 3
    assert result.last_with.prompt_tokens < result.last_without.prompt_tokens / 5
    assert sum(row.with_memory for row in result.rows) == result.with_memory.prompt


def test_prompt_cache_keeps_hitting(result: DemoResult) -> None:
    """The prefix before the tail is stable: most of what is sent is read from the provider's
    cache."""
    assert result.with_memory.cached > 0.7 * result.with_memory.prompt


def test_costs_less_at_list_prices(result: DemoResult) -> None:
    """With caching prices on both sides and memory's own calls included, every shown actor costs
    less."""
    shown = compute_costs(result.without, result.with_memory, result.memory)
    assert [m.actor for m in shown if m.saved_share < 0.25] == []


def test_fact_from_the_first_day_is_known(result: DemoResult) -> None:
    """The whole history answers the question, and so do the notes. The newest messages, of the same
    size, do not."""
    assert FACT in result.answer_without
    assert FACT in result.answer_with
    assert result.answer_trimmed == UNKNOWN_ANSWER


def test_answer_comes_from_the_observations(result: DemoResult) -> None:
    """In the prompt with memory, the observation block holds the fact, and the raw tail does
    not."""
    first, *tail = result.last_with.messages
    block = re.search(r"<observations>\n(.*)\n</observations>", message_text(first), re.DOTALL)
    assert block
    assert FACT in block[1]
    assert all(FACT not in message_text(m) for m in tail)


def test_what_the_notes_left_out_is_looked_up(result: DemoResult) -> None:
    """The last question but one asks for a figure that no note holds. The model gets it from the
    tool's result, which stands in the next prompt; the table tells of the look-up."""
    before, last = result.rows[-2:]
    (looked_up,) = before.events
    assert re.fullmatch(r"looked up: \d+ of \d+ messages", looked_up)
    assert last.events == ()
    system, *said = result.last_with.messages
    assert FIGURE not in message_text(system)
    call, found, reply = said[-4:-1]
    assert call["tool_calls"][0]["function"]["name"] == "recall"
    assert found["role"] == "tool"
    assert FIGURE in message_text(found)
    assert FIGURE in message_text(reply)
    assert [m for m in said[:-4] if FIGURE in message_text(m)] == []


async def test_what_is_not_stored_is_not_known(story: Story) -> None:
    """Without the message that holds the figure, the look-up is made and finds nothing of it."""
    result = await play_story(Story((*story.turns[:9], *story.turns[-2:])), create_plain_console())
    assert result.rows[-2].events[-1].startswith("looked up: ")
    said = result.last_with.messages
    assert [m for m in said if FIGURE in message_text(m)] == []
    assert message_text(said[-2]) == UNKNOWN_ANSWER


@pytest.mark.parametrize("fault", ["prose", "http", "nothing"])
async def test_failing_memory_models_change_no_answer(
    story: Story, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an observer that never gives usable notes, the conversation stays the same and costs
    more."""

    def faulty(*args: Any, **kwargs: Any) -> ScriptedServer:
        return ScriptedServer(
            *args,
            **kwargs,
            faults=[Fault(kind=fault, model=m, status=400) for m in (OBSERVER, REFLECTOR)],
        )

    monkeypatch.setattr(stage, "ScriptedServer", faulty)
    result = await play_story(Story(story.turns[:7]), create_plain_console())
    assert result.memory.prompt > 0
    assert result.with_memory.prompt == result.without.prompt


async def test_a_derailed_story_is_an_error(short: Story) -> None:
    """An answer that is not the story's ends the demo: its figures would mean nothing."""
    first = short.turns[0]
    other = replace(first, follows=({"role": "assistant", "content": "Something else."},))
    with pytest.raises(OmError, match="left the story"):
        await play_story(
            _split_script(short, Story((other, *short.turns[1:]))), create_plain_console()
        )


def _split_script(spoken: Story, expected: Story) -> Story:
    class Split(Story):
        @property
        def script(self) -> Any:
            return spoken.script

    return Split(expected.turns)


async def test_nothing_is_left_behind(
    short: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the proxy stored is removed at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await play_story(short, create_plain_console())
    assert os.listdir(tmp_path) == []


# ── the parts ─────────────────────────────────────────────────────────────────────────────────────

ROW = Row(date(2026, 3, 2), 7, "Good. Now make them pass.", 20_000, 5_000, ("activated, log 947",))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"status": "raw"}, []),
        ({}, {"status": "applied", "observation-tokens": "900"}, ["activated, log 900"]),
        ({"observation-tokens": "900"}, {"observation-tokens": "900"}, []),
        (
            {"observation-tokens": "2600", "generation": "0"},
            {"observation-tokens": "1100", "generation": "1"},
            ["reflected, log 1,100"],
        ),
        ({}, {"status": "degraded", "reason": "memory-slow"}, ["degraded: memory-slow"]),
    ],
)
def test_changes_between_receipts(
    before: dict[str, str], after: dict[str, str], expected: list[str]
) -> None:
    """The receipts tell what memory did."""
    assert list(describe_changes(before, after)) == expected


def test_trim_history_to_a_budget() -> None:
    """The instructions and whole newest turns are kept: no result without its call, never above the
    budget."""
    models = ScriptedServer(count=len)
    said = [{"role": "system", "content": "s"}] + [
        {"role": role, "content": f"{n}", "tool_call_id": f"{n}"}
        if role == "tool"
        else {"role": role, "content": f"{n}"}
        for n in range(5)
        for role in ("user", "tool", "assistant")
    ]
    budget = models.count_prompt_tokens([said[0], *said[-5:]])
    kept = trim_history(models, said, budget)
    assert kept == [said[0], *said[-3:]]
    assert models.count_prompt_tokens(kept) <= budget


def test_each_part_of_a_bill_has_its_price() -> None:
    """Input that is not cached is written to the cache; each part has its own price."""
    from om_proxy.agents.models import Price

    bill = Bill(2_000, 1_000, 20)
    assert (
        bill.compute_dollars(Price(input=1.0, output=5.0, cached_input=0.1, cache_write=1.25))
        == 1_250 + 100 + 100
    )


@pytest.mark.parametrize(("sent", "filled"), [(5_000, 5), (20_000, 20), (26_000, 20), (0, 0)])
def test_bar_shows_the_share(sent: int, filled: int) -> None:
    """The filled part is what is sent with memory, of what is sent without; at most all of the
    bar."""
    drawn = render_bar(replace(ROW, with_memory=sent))
    assert drawn.plain == "━" * 20
    assert max((span.end for span in drawn.spans if span.style == "green"), default=0) == filled


def test_plain_row() -> None:
    """Without a terminal a row is one line that cuts long texts."""
    assert (
        " ".join(render_plain_row(ROW).split())
        == "Mon Mar 2 7 Good. Now make them pass. 20,000 5,000 activated, log 947"
    )
    assert "…" in render_plain_row(replace(ROW, said="word " * 40))


@pytest.mark.parametrize("no_color", [False, True])
def test_live_table_on_a_terminal(no_color: bool) -> None:
    """On a terminal the table is live; with NO_COLOR it has no colours."""
    file = io.StringIO()
    console = Console(
        file=file,
        force_terminal=True,
        no_color=no_color,
        width=120,
        height=30,
        _environ={"TERM": "xterm-256color"},
    )
    with Board(console) as board:
        board.add(ROW)
        board.add(replace(ROW, number=8))
    out = file.getvalue()
    assert "sent so far" in out
    assert "75% less" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", out)) is not no_color


def test_prompt_of_tools_is_cut(result: DemoResult) -> None:
    """The printed prompt shows notes in full and tools' results by their first lines."""
    console = create_plain_console()
    summary.print_summary(console, result, show_prompt=True)
    out = read_printed(console)
    assert "more lines" in out
    assert re.search(r"^\[m\d+-m\d+\]$", out, flags=re.M)  # the range of each entry
    assert FACT in out


def test_pace_waits(short: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--pace` is the only wait, once a turn."""
    waits: list[float] = []

    async def noted(seconds: float) -> None:
        waits.append(seconds)

    paused = Story(short.turns[:2])
    monkeypatch.setattr(play.asyncio, "sleep", _record_wait(2.5, noted, asyncio.sleep))
    asyncio.run(play_story(paused, create_plain_console(), pace=2.5))
    assert waits == [2.5, 2.5]


def _record_wait(seconds: float, noted: Any, real: Any) -> Any:
    return lambda wanted, *more: noted(wanted) if wanted == seconds else real(wanted, *more)
