"""A long log becomes a shorter one, with firmer guidance each time."""

from __future__ import annotations

from random import Random

import pytest

from proxy.agents import wording
from proxy.agents.llm import Target
from proxy.agents.reflector import Reflected, Reflector
from proxy.errors import ModelBusy, ModelError, Unusable
from tests.agents.scripted_llm import ScriptedLLM, Waits, texts, words
from tests.agents.test_observer import Settings


def sized(size: int) -> str:
    return f"<observations>\n* 🔴 (10:00) {' '.join(f'w{n}' for n in range(size - 3))}\n</observations>"


async def reflect(*steps: str | ModelError, target: int = 40) -> tuple[Reflected, ScriptedLLM]:
    llm = ScriptedLLM.of(*steps)
    reflector = Reflector(llm, tokens=words, sleep=Waits(), rng=Random(1))
    made = await reflector.reflect(
        "word " * 100, target_tokens=target, instruction=None, targets=[Target("a")], settings=Settings()
    )
    return made, llm


async def test_accepted_at_once() -> None:
    """Smaller than the target: one call."""
    made, llm = await reflect(sized(39) + "<current-task>ship it</current-task>")
    assert (made.tokens, made.task, made.suggestion, made.calls, made.model) == (39, "ship it", None, 1, "a")
    assert llm.asked[0][1].system == wording.reflector("none", instruction=None)


async def test_the_prompt() -> None:
    """The log stands in a fence that none of its text can close."""
    llm = ScriptedLLM.of(sized(4))
    await Reflector(llm, tokens=words, sleep=Waits(), rng=Random(1)).reflect(
        "* a </previous-observations> b c d",
        target_tokens=40,
        instruction="Keep allergies.",
        targets=[Target("a")],
        settings=Settings(temperature=0.0),
    )
    prompt = llm.asked[0][1]
    assert "<previous-observations>\n* a &lt;/previous-observations> b c d\n</previous-observations>" in texts(prompt)
    assert prompt.system.endswith("Keep allergies.")
    assert prompt.temperature == 0.0


async def test_guidance_rises() -> None:
    """Each answer that is not small enough brings firmer guidance; the first that is ends it."""
    made, llm = await reflect(sized(90), sized(40), sized(30))
    assert [prompt.system for _, prompt in llm.asked] == [
        wording.reflector(level, instruction=None) for level in ("none", "gentle", "strong")
    ]
    assert (made.tokens, made.calls, made.input_tokens) == (30, 3, 300)


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [((90, 80, 70, 60), 60), ((60, 80, 70, 90), 60), ((150, 99, 150, 150), 99)],
)
async def test_the_smallest_is_kept(sizes: tuple[int, ...], kept: int) -> None:
    """After four calls the smallest result that is smaller than the log, though above the target."""
    made, llm = await reflect(*map(sized, sizes))
    assert (made.tokens, made.calls, len(llm.asked)) == (kept, 4, 4)


async def test_nothing_smaller() -> None:
    """A result as long as the log replaces nothing."""
    with pytest.raises(Unusable):
        await reflect(sized(100), sized(120), "", "prose without a bullet")


async def test_an_unusable_answer_is_passed_over() -> None:
    """Empty and looping answers count as too long."""
    loop = "<observations>\n" + "* 🔴 (10:00) the same line once more again\n" * 200 + "</observations>"
    made, _ = await reflect("", loop, sized(30))
    assert (made.tokens, made.calls) == (30, 3)


async def test_a_failing_model_leaves_what_there_is() -> None:
    """With a usable result at hand a failure ends the search, and is no failure."""
    made, _ = await reflect(sized(80), ModelError("gone"))
    assert made.tokens == 80


async def test_a_failing_model_without_any_result() -> None:
    """Without one, the model's failure is told."""
    with pytest.raises(ModelBusy, match="third"):
        await reflect(ModelBusy("first"), ModelBusy("second"), ModelBusy("third"))
    with pytest.raises(ModelError, match="gone"):
        await reflect(sized(110), ModelError("gone"))
