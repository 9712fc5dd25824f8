"""The observer turns messages into notes, with one usable answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from om_proxy.agents.model_access.llm import Image, Target
from om_proxy.agents.model_access.retries import CallBill, PaidCall
from om_proxy.agents.models import Abilities
from om_proxy.agents.observer import Observer, ObserverTask
from om_proxy.common.errors import ModelBusy, ModelError, PromptTooLong, Unusable
from om_proxy.memory.token_prices import Usage
from tests.agents.messages import assistant, messages, user
from tests.agents.scripted_llm import ScriptedLLM, Waits, bullets, texts, words

A, B = Target("a"), Target("b")
PICTURE = "data:image/png;base64,AAAA"
TASK = ObserverTask(messages=messages(user("The limit is 40 MB."), assistant("Noted.")))


@dataclass(frozen=True)
class Settings:
    temperature: float | None = 0.3
    max_output_tokens: int | None = 100_000
    reasoning_effort: str | None = "auto"
    extra_body: Mapping[str, Any] = field(default_factory=dict)


def observer(
    llm: ScriptedLLM, known: Abilities | None = None, waits: Waits | None = None
) -> Observer:
    return Observer(
        llm,
        tokens=words,
        sleep=waits or Waits(),
        rng=Random(1),
        abilities=lambda _model: known or Abilities(),
    )


async def asked(
    task: ObserverTask,
    target: Target = A,
    known: Abilities | None = None,
    settings: Settings | None = None,
) -> tuple[Any, str]:
    """Return the prompt that was sent, and the text of its user message."""
    llm = ScriptedLLM.of(bullets("noted"))
    await observer(llm, known).observe(task, [target], settings or Settings())
    prompt = llm.asked[0][1]
    return prompt, texts(prompt)


async def test_an_observation() -> None:
    """Notes, hints and title are returned parsed; the bill has the call."""
    bill = CallBill()
    hints = "\n<current-task>raise it</current-task>\n<suggested-response>ask why</suggested-response><thread-title>Limits</thread-title>"
    task = replace(TASK, want_title=True, want_suggestion=True)
    made = await observer(ScriptedLLM.of(bullets("User stated 40 MB", extra=hints))).observe(
        task, [A], Settings(), bill
    )
    assert made.text == "Date: May 22, 2023\n* 🔴 (10:00) User stated 40 MB"
    assert (made.task, made.suggestion, made.title, made.model) == (
        "raise it",
        "ask why",
        "Limits",
        "a",
    )
    assert bill.calls == [PaidCall("a", Usage(100, 40, 0, 10), False)]


async def test_the_prompt() -> None:
    """The system prompt is the proxy's. The user message holds the known notes, escaped, then the
    transcript in its fence."""
    task = replace(
        TASK,
        previous="* 🔴 old </previous-observations> note",
        task="find it",
        title="not wanted, not told",
        timezone=ZoneInfo("Europe/Berlin"),
        instruction="Note allergies.",
    )
    prompt, text = await asked(task)
    assert prompt.system.startswith("You keep the memory of an assistant.")
    assert prompt.system.endswith("Note allergies.")
    assert (prompt.temperature, prompt.max_output_tokens) == (0.3, 8_192)
    known, new = text.split("# New messages")
    assert known == (
        "# Known already\n\n"
        "<previous-observations>\n* 🔴 old &lt;/previous-observations> note\n</previous-observations>\n\n"
        "<current-task>\nfind it\n</current-task>\n\n"
    )
    assert "Times are those of Europe/Berlin." in new
    assert (
        "<transcript>\n"
        "Date: Monday, May 22, 2023 (last week May 15-21, this week May 22-28, next week May 29 to Jun 4)\n"
        "User (14:00): The limit is 40 MB.\n"
    ) in new


async def test_nothing_known() -> None:
    """A first observation has no empty sections."""
    _, text = await asked(TASK)
    assert "Known already" not in text
    assert "previous-observations" not in text


async def test_title() -> None:
    """If a title is wanted, the prompt holds the current one; otherwise a title in the answer is
    dropped."""
    prompt, text = await asked(replace(TASK, want_title=True, title="Limits"))
    assert "thread-title" in prompt.system
    assert "<thread-title>\nLimits\n</thread-title>" in text
    volunteered = ScriptedLLM.of(bullets("noted", extra="\n<thread-title>Limits</thread-title>"))
    assert (await observer(volunteered).observe(TASK, [A], Settings())).title is None


async def test_settings_are_clamped() -> None:
    """Output tokens are limited to the model's limit, and a refused temperature is left out."""
    prompt, _ = await asked(TASK, known=Abilities(max_output=8_192, takes_temperature=False))
    assert (prompt.temperature, prompt.max_output_tokens) == (None, 8_192)
    prompt, _ = await asked(TASK, known=Abilities(max_output=200_000, takes_temperature=True))
    assert (prompt.temperature, prompt.max_output_tokens) == (0.3, 100_000)


@pytest.mark.parametrize(
    ("effort", "thinks", "sent"),
    [
        ("auto", True, "low"),
        ("auto", False, None),
        ("auto", None, None),
        ("minimal", False, "minimal"),
        (None, True, None),
    ],
)
async def test_a_model_that_thinks_thinks_little(
    effort: str | None, thinks: bool | None, sent: str | None
) -> None:
    """The effort is low, unless the operator wants another one."""
    prompt, _ = await asked(
        TASK, known=Abilities(thinks=thinks), settings=Settings(reasoning_effort=effort)
    )
    assert prompt.reasoning_effort == sent


async def test_the_limit_of_an_unknown_model() -> None:
    """It is small: a server adds it to the prompt, and its window may be small."""
    prompt, _ = await asked(TASK, known=Abilities())
    assert prompt.max_output_tokens == 8_192
    prompt, text = await asked(replace(TASK, previous="word " * 20_000), known=Abilities())
    assert prompt.max_output_tokens == pytest.approx(len(text) // 4, abs=1)
    assert len(text) // 4 > 8_192


@pytest.mark.parametrize(
    ("known", "via", "shown"),
    [
        (True, "direct", True),
        (False, "direct", False),
        (None, "direct", True),
        (None, "litellm", False),
        (True, "litellm", True),
    ],
)
async def test_images(known: bool | None, via: Any, shown: bool) -> None:
    """Images are shown to models that take them, and to unknown models that can be asked again
    without; the placeholder is always there."""
    content = [{"type": "image_url", "image_url": {"url": PICTURE}}]
    task = ObserverTask(messages=messages(user(content)))
    prompt, text = await asked(task, Target("a", via), Abilities(takes_images=known))
    assert (Image(PICTURE) in prompt.user) is shown
    assert "[Image #1: image/png]" in text
    if shown:
        assert prompt.user[prompt.user.index(Image(PICTURE)) - 1] == "Image #1:"


async def test_clipped() -> None:
    """A message that is too long for the observer is shortened."""
    task = ObserverTask(messages=messages(user("word " * 5_000)), clip_tokens=100)
    _, text = await asked(task)
    assert "about 4900 tokens left out" in text
    assert words(text) < 200


@pytest.mark.parametrize(
    "bad", ["", "I'm sorry, but I can't help with that.", "The user set a limit."]
)
async def test_unusable_is_retried_once(bad: str) -> None:
    """An unusable answer is retried once, and both calls are paid for."""
    llm, bill = ScriptedLLM.of(bad, bullets("40 MB")), CallBill()
    made = await observer(llm).observe(TASK, [A], Settings(), bill)
    assert made.text.endswith("40 MB")
    assert (len(bill.calls), bill.usage.input_tokens) == (2, 200)


async def test_unusable_twice() -> None:
    """A second unusable answer is a failure. Both are paid for."""
    llm, bill = ScriptedLLM.of("", "nothing to note", bullets("never asked for")), CallBill()
    with pytest.raises(Unusable):
        await observer(llm).observe(TASK, [A], Settings(), bill)
    assert len(llm.asked) == len(bill.calls) == 2


async def test_the_retry_asks_another_model() -> None:
    """A list's next model gets the second try."""
    llm = ScriptedLLM.of("", bullets("40 MB"))
    made = await observer(llm).observe(TASK, [A, B], Settings())
    assert (made.model, llm.models) == ("b", ["a", "b"])


async def test_more_than_twice_as_long_as_its_source() -> None:
    """An answer that is too long for its source is refused."""
    long = bullets(*(f"point {n} of many that nobody made" for n in range(400)))
    with pytest.raises(Unusable, match="oversized"):
        await observer(ScriptedLLM.of(long, long)).observe(TASK, [A], Settings())


async def test_busy() -> None:
    """A busy model is asked again after a wait, and the list's next model replaces one that
    fails."""
    waits = Waits()
    llm = ScriptedLLM.of(ModelBusy("busy"), ModelError("gone"), bullets("40 MB"))
    bill = CallBill()
    await observer(llm, waits=waits).observe(TASK, [A, B], Settings(), bill)
    assert (llm.models, len(waits.seconds), bill.tries) == (["a", "a", "b"], 1, 3)
    assert [call.model for call in bill.calls] == ["b"]


async def test_too_long() -> None:
    """The error makes the caller send less."""
    with pytest.raises(PromptTooLong):
        await observer(ScriptedLLM.of(PromptTooLong("too long"))).observe(TASK, [A, B], Settings())


def test_reprs_show_no_text() -> None:
    """A repr, which may be logged, shows no text of a conversation."""
    assert "40 MB" not in repr(TASK)
    assert "secret" not in repr(
        replace(TASK, previous="secret", instruction="secret", task="secret")
    )
