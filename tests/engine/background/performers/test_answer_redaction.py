"""A memory model's answer is stored without secrets; the transcript keeps what was said."""

from __future__ import annotations

from random import Random

import pytest

from om_proxy.memory.lifecycle.decisions import Observe, Reflect
from tests.agents.scripted_llm import bullets
from tests.memory.building import KEY, chat
from tests.memory.notes.test_redaction import SHAPES, filled
from tests.support.performing import SMALL, open_parts, store_logged_thread

SIX = Observe(after=0, last=6, tokens=300)
RNG = Random(17)
SECRETS = [filled(template, RNG) for templates in SHAPES.values() for template in templates]
NOTES = bullets(
    *(f"User's key is {secret}" for secret in SECRETS),
    extra=f"\n<current-task>revoke {SECRETS[0]}</current-task>",
)
KEPT = SMALL.replace("observation: {", "observation: {redact: false, ")


@pytest.mark.parametrize(
    ("settings", "kept"), [(SMALL, False), (KEPT, True)], ids=["default", "switched off"]
)
async def test_notes(settings: str, kept: bool) -> None:
    """Secrets of every shape leave notes and hints, unless `redact` is off."""
    async with open_parts(NOTES, settings=settings) as p:
        before = await p.store_tail(chat(8, 400))
        assert await p.worker.perform(KEY, SIX, p.context())
        after = await p.memory()
        (made,) = after.chunks
        assert [secret in made.text for secret in SECRETS] == [kept] * len(SECRETS)
        assert made.task is not None
        assert (SECRETS[0] in made.task) == kept
        assert made.tokens == len(made.text.split())
        assert after.tail == before.tail


@pytest.mark.parametrize(
    ("settings", "kept"), [(SMALL, False), (KEPT, True)], ids=["default", "switched off"]
)
async def test_reflections(settings: str, kept: bool) -> None:
    """Notes from before the switch are cleaned when they are condensed."""
    async with open_parts(bullets(f"User's key is {SECRETS[0]}"), settings=settings) as p:
        await store_logged_thread(p, 200, 200)
        assert await p.worker.perform(KEY, Reflect(2, 300), p.context())
        reflection = (await p.memory()).log.reflection
        assert reflection is not None
        assert (SECRETS[0] in reflection.text) == kept
