"""A store that fails for a moment costs no answer of a memory model."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from om_proxy.common.errors import Conflict, OmError, StorageError, Unwritable
from om_proxy.engine.background.performers import work_guard
from om_proxy.memory.lifecycle.decisions import Decision, Observe, Reflect
from om_proxy.memory.model import Memory
from om_proxy.storage.base import Store
from tests.agents.scripted_llm import bullets
from tests.memory.building import KEY, chat
from tests.memory.notes.test_redaction import SHAPES, filled
from tests.support.performing import SMALL, Parts, open_parts, store_logged_thread

OBSERVE = Observe(after=0, last=6, tokens=300)


async def prepare_observation(parts: Parts) -> Decision:
    await parts.store_tail(chat(4, 50))
    return OBSERVE


async def prepare_reflection(parts: Parts) -> Decision:
    await store_logged_thread(parts, 200, 200)
    return Reflect(entries=2, accept_below=300)


def has_notes(memory: Memory) -> bool:
    return bool(memory.chunks or memory.log.reflection)


def fail_commits(
    monkeypatch: pytest.MonkeyPatch, store: Store, *errors: OmError, writes: bool = False
) -> None:
    """Let commits fail so often. `writes`: after they were written, as where an answer is lost."""
    left, commit = list(errors), store.commit

    async def fail(*args: Any) -> Memory:
        if left and not writes:
            raise left.pop(0)
        committed = await commit(*args)
        if left:
            raise left.pop(0)
        return committed

    monkeypatch.setattr(store, "commit", fail)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_guard, "RETRY_S", 0.0)


@pytest.mark.parametrize("writes", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("prepare", [prepare_observation, prepare_reflection])
async def test_a_store_that_fails_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Parts], Any],
    writes: bool,
) -> None:
    """The answer is stored, once, and paid for once: whether the failed commits were written or
    not."""
    async with open_parts(bullets("short")) as p:
        decision = await prepare(p)
        fail_commits(monkeypatch, p.store, StorageError("cut"), StorageError("cut"), writes=writes)
        assert await p.worker.perform(KEY, decision, p.context())
        after = await p.memory()
        assert has_notes(after)
        assert len(after.chunks) <= 1
        assert after.ledger.full_memory.calls == 1
        assert len(p.models.asked) == 1


@pytest.mark.parametrize("error", [Conflict("changed"), Unwritable("too long")], ids=type)
async def test_what_no_time_heals(monkeypatch: pytest.MonkeyPatch, error: OmError) -> None:
    async with open_parts() as p:
        decision = await prepare_observation(p)
        fail_commits(monkeypatch, p.store, *[error] * 50)
        with pytest.raises(type(error)):
            await p.worker.perform(KEY, decision, p.context())
        assert not has_notes(await p.memory())


async def test_a_store_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is given up in the end: the work is due again."""
    monkeypatch.setattr(work_guard, "MAX_STORING_S", 0.05)
    async with open_parts() as p:
        decision = await prepare_observation(p)
        fail_commits(monkeypatch, p.store, *[StorageError("away")] * 100_000)
        with pytest.raises(StorageError, match="away"):
            await p.worker.perform(KEY, decision, p.context())


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
