"""The reflector shortens a long log, with firmer guidance each time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.agents import wording
from om_proxy.agents.model_access.dialect import write_body
from om_proxy.agents.model_access.llm import Answer, Target
from om_proxy.agents.model_access.retries import CallBill
from om_proxy.agents.reflector import Reflected, Reflector, compute_requested_tokens
from om_proxy.common.errors import CutOff, ModelBusy, ModelError, Unusable
from om_proxy.memory.notes.cut_off import Finish
from om_proxy.memory.token_prices import Usage
from tests.agents.scripted_llm import ScriptedLLM, Waits, know_nothing, texts, words
from tests.agents.test_observer import Settings


def sized(size: int) -> str:
    return f"<observations>\n* 🔴 (10:00) {' '.join(f'w{n}' for n in range(size - 3))}\n</observations>"


async def reflect(
    *steps: str | Answer | ModelError, target: int = 40, bill: CallBill | None = None
) -> tuple[Reflected, ScriptedLLM]:
    llm = ScriptedLLM.of(*steps)
    reflector = Reflector(llm, tokens=words, abilities=know_nothing, sleep=Waits(), rng=Random(1))
    made = await reflector.reflect(
        "word " * 100,
        target_tokens=target,
        instruction=None,
        targets=[Target("a")],
        settings=Settings(),
        bill=bill,
    )
    return made, llm


async def test_accepted_at_once() -> None:
    """An answer below the target takes one call."""
    made, llm = await reflect(sized(39) + "<current-task>ship it</current-task>")
    assert (made.tokens, made.task, made.suggestion, made.model) == (39, "ship it", None, "a")
    assert len(llm.asked) == 1
    assert llm.asked[0][1].system == wording.write_reflector_prompt(instruction=None)


async def test_the_prompt() -> None:
    """The log is in a fence that its text cannot close."""
    llm = ScriptedLLM.of(sized(4))
    await Reflector(
        llm, tokens=words, abilities=know_nothing, sleep=Waits(), rng=Random(1)
    ).reflect(
        "* a </previous-observations> b c d",
        target_tokens=40,
        instruction="Keep allergies.",
        targets=[Target("a")],
        settings=Settings(temperature=0.0),
    )
    prompt = llm.asked[0][1]
    assert (
        "<previous-observations>\n* a &lt;/previous-observations> b c d\n</previous-observations>"
        in texts(prompt)
    )
    assert prompt.system.endswith("Keep allergies.")
    assert prompt.temperature == 0.0


async def test_guidance_rises() -> None:
    """Each answer that is too long gives firmer guidance; the first short enough one ends it."""
    made, llm = await reflect(sized(90), sized(40), sized(30))
    levels: list[wording.Level] = ["none", "gentle", "strong"]
    assert [str(prompt.user[-1]) for _, prompt in llm.asked] == [
        wording.write_guidance(
            level,
            source_tokens=100,
            max_tokens=most,
            earlier="too-long" if level != "none" else None,
        )
        for level, most in zip(levels, (35, 32, 26), strict=True)
    ]
    assert (made.tokens, len(llm.asked)) == (30, 3)


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [((90, 80, 70, 60), 60), ((60, 80, 70, 90), 60), ((150, 99, 150, 150), 99)],
)
async def test_the_smallest_is_kept(sizes: tuple[int, ...], kept: int) -> None:
    """After four calls, the smallest result below the log's size is used, even above the target."""
    made, llm = await reflect(*map(sized, sizes))
    assert (made.tokens, len(llm.asked)) == (kept, 4)


async def test_nothing_smaller() -> None:
    """A result as long as the log is not used. All the same it is paid for, each answer of it."""
    bill = CallBill()
    with pytest.raises(Unusable):
        await reflect(sized(100), sized(120), "", "prose without a bullet", bill=bill)
    assert (len(bill.calls), bill.usage) == (4, Usage(400, 160, 0, 40))


LOOP = "<observations>\n" + "* 🔴 (10:00) the same line once more again\n" * 200 + "</observations>"
WHOLE = sized(30)
CUT = WHOLE[: WHOLE.index(" w20")] + " (from"


def levels(llm: ScriptedLLM) -> list[str]:
    """List the level of guidance in each request, recognised by its text."""
    lessons = {
        "gentle": "cut words before",
        "strong": "must become clearly",
        "stronger": "must become much",
    }
    asked = [str(prompt.user[-1]) for _, prompt in llm.asked]
    return [
        next((level for level, lesson in lessons.items() if lesson in text), "none")
        for text in asked
    ]


@pytest.mark.parametrize(
    "bad",
    ["", LOOP, "I kept what matters.", "I'm sorry, but I can't help with that.", CUT],
    ids=["empty", "loop", "prose", "refusal", "unclosed"],
)
async def test_an_unusable_answer_repeats_its_level(bad: str) -> None:
    """An unusable answer says nothing about length: the guidance stays, and the model is not told
    that it wrote too much."""
    made, llm = await reflect(bad, bad, WHOLE)
    assert (made.tokens, len(llm.asked)) == (30, 3)
    assert levels(llm) == ["none"] * 3
    assert not any("too long" in str(prompt.user[-1]) for _, prompt in llm.asked)


async def test_a_too_long_answer_behind_an_unusable_one_climbs_once() -> None:
    """The two faults are distinguished within one reflection."""
    _, llm = await reflect(sized(90), "", sized(60), WHOLE)
    assert levels(llm) == ["none", "gentle", "gentle", "strong"]


async def test_an_oversized_answer_climbs() -> None:
    """An answer more than twice as long as the notes counts as too long."""
    made, llm = await reflect(f"<observations>\n{wordy(1_200)}\n</observations>", WHOLE)
    assert (made.tokens, levels(llm)) == (30, ["none", "gentle"])


def wordy(size: int) -> str:
    return "\n".join(f"* 🔴 (10:00) fact {n} is known by number {n * n}" for n in range(size // 8))


async def test_the_next_model_is_asked_after_an_unusable_answer() -> None:
    """A list's next model gets the second try; after the last model comes the first again."""
    llm = ScriptedLLM.of("", "", WHOLE)
    reflector = Reflector(llm, tokens=words, abilities=know_nothing, sleep=Waits(), rng=Random(1))
    made = await reflector.reflect(
        "word " * 100,
        target_tokens=40,
        instruction=None,
        targets=[Target("a"), Target("b")],
        settings=Settings(),
    )
    assert (llm.models, made.model) == (["a", "b", "a"], "a")


@pytest.mark.parametrize("finish", ["cut", "unknown", "stop"])
async def test_a_cut_off_reflection_never_counts(finish: Finish) -> None:
    """A cut-off reflection is refused, however short: its end is missing."""
    with pytest.raises(CutOff):
        await reflect(*[Answer(CUT, "a", finish=finish)] * 4)
    with pytest.raises(CutOff):
        await reflect(*[Answer(WHOLE, "a", finish="cut")] * 4)


async def test_tries_share_all_but_their_guidance() -> None:
    """All tries have the same system prompt and notes, byte for byte, so that a second try reads
    them from the model's prompt cache."""
    _, llm = await reflect(sized(90), "", sized(60), WHOLE)
    first, *others = [write_body("a", prompt)["messages"] for _, prompt in llm.asked]
    notes_end = first[1]["content"].index("</previous-observations>") + len(
        "</previous-observations>\n\n"
    )
    for messages in others:
        assert messages[0] == first[0]
        assert messages[1]["content"][:notes_end] == first[1]["content"][:notes_end]
        assert messages[1]["content"][notes_end:].startswith("# This time")


@given(st.integers(2, 10**6))
@settings(deadline=None)
def test_no_level_asks_for_more_than_is_accepted(accept_below: int) -> None:
    """An answer of the requested size is always accepted; a higher level never requests more."""
    sizes = [compute_requested_tokens(level, accept_below) for level in wording.LEVELS]
    assert all(1 <= size < accept_below for size in sizes)
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("accepted", "shares"),
    [(0.7, [0.62, 0.56, 0.45, 0.32]), (0.55, [0.49, 0.44, 0.36, 0.25])],
)
def test_levels_ask_for_their_shares(accepted: float, shares: list[float]) -> None:
    """Of notes that were never condensed, and of others."""
    sizes = [compute_requested_tokens(level, round(accepted * 20_000)) for level in wording.LEVELS]
    assert [size / 20_000 for size in sizes] == pytest.approx(shares, abs=0.006)


async def test_a_failing_model_leaves_what_there_is() -> None:
    """With a usable result, a later failure ends the search and is not raised."""
    made, _ = await reflect(sized(80), ModelError("gone"))
    assert made.tokens == 80


async def test_a_failing_model_without_any_result() -> None:
    """Without a usable result, the model's failure is raised."""
    with pytest.raises(ModelBusy, match="third"):
        await reflect(ModelBusy("first"), ModelBusy("second"), ModelBusy("third"))
    with pytest.raises(ModelError, match="gone"):
        await reflect(sized(110), ModelError("gone"))
