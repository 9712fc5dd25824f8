"""Work that is left to workers, and nobody does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from om_proxy.agents.model_access.failures import build_model_error
from om_proxy.cli.doctor.threads import (
    CAUSES_BY_CODE,
    MAX_WAITING_S,
    UNKNOWN_CAUSE,
    examine_due_work,
    explain_cause,
)
from om_proxy.common.errors import ModelError
from tests.memory.building import KEY, chat
from tests.support.performing import INHERITED, SMALL, open_parts


@pytest.mark.parametrize(
    ("settings", "waited_s", "works"),
    [
        (SMALL, MAX_WAITING_S + 1, False),
        (SMALL, MAX_WAITING_S - 1, True),
        (INHERITED, MAX_WAITING_S + 1, True),
    ],
    ids=["nobody does it", "not yet", "no worker can"],
)
async def test_work_that_waits(settings: str, waited_s: float, works: bool) -> None:
    async with open_parts(settings=settings) as p:
        memory = await p.store_tail(chat(3, 50))
        assert memory.due_at is not None
        (finding,) = await examine_due_work(p.store, memory.due_at + waited_s)
        assert finding.works is works
        assert ("start om-proxy worker" in finding.text) is not works


async def test_work_under_way() -> None:
    """A worker has it."""
    async with open_parts() as p:
        memory = await p.store_tail(chat(3, 50))
        assert memory.due_at is not None
        await p.store.lease(KEY, "a worker", 100.0)
        (finding,) = await examine_due_work(p.store, memory.due_at + 2 * MAX_WAITING_S)
        assert finding.works


def model_errors(kind: type[ModelError] = ModelError) -> Iterator[type[ModelError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from model_errors(one)


def test_every_cause_has_its_words() -> None:
    """Every error of a memory model has an explanation."""
    assert {kind.code for kind in model_errors()} == set(CAUSES_BY_CODE)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("observe om_cut_off", ["observing failed", "cut off", "max_output_tokens"]),
        ("reflect om_unusable", ["condensing notes failed", "held no notes"]),
        ("observe om_model 401: check memory.api_key", ["answered 401", "check memory.api_key"]),
        ("observe om_model_busy 503", ["answered 503"]),
        ("", [UNKNOWN_CAUSE]),
        ("observe om_of_tomorrow", [UNKNOWN_CAUSE]),
    ],
)
def test_in_words(stored: str, said: list[str]) -> None:
    """The sentence says what failed, why, and what to do; an unknown cause is called unknown."""
    assert all(text in explain_cause(stored) for text in said)


def test_a_cause_quotes_nobody() -> None:
    """A server's message and code are not stored."""
    error = build_model_error(
        401, code="sk-CANARY", message="the CANARY sings", headers={}, now=0.0
    )
    assert error.cause.startswith("om_model 401: check memory.api_key")
    assert "CANARY" not in error.cause
