"""A resource's reflection that is ready is taken by whichever of its threads speaks next, also by
one that nobody has heard of yet."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import run_with_scripted_models
from tests.e2e.test_resource_scope import LONG, Minds, chat, shared_log

LATE = """scope: resource, observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 2s},
reflection: {observation_tokens: 1800, buffer_activation: 1.0}"""


@pytest.fixture
def interrupted() -> Iterator[None]:
    """What never waits for anything is stopped all the same: a loop without an end would hold the
    server, and this test."""

    def stop(*_: object) -> None:
        raise TimeoutError("it did not come to an end")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 30)  # of CPU time: a busy machine makes it no longer
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


@pytest.mark.usefixtures("interrupted")
async def test_a_new_thread_swaps(tmp_path: Path) -> None:
    """Its first request is answered with the shorter log. (Decided on the shared log and looked for
    in its own, which a new thread does not have yet, the swap was tried again without end, and
    nobody else was served.)"""
    async with run_with_scripted_models(tmp_path, LATE, models=Minds()) as run:
        talk = chat(run, "monday")
        for turn in range(60):
            await talk.say(LONG.format(n=turn, who="monday"))
            run.clock.now += 1
            await run.app.background.wait_idle()
            if (log := await shared_log(run)).log.reflection and log.log.tokens >= 1_800:
                break
        assert log.log.reflection
        _, receipt = await chat(run, "tuesday").say("Hello there.")
        assert (receipt["status"], int(receipt["generation"])) == (
            "applied",
            log.log.generation + 1,
        )
        assert int(receipt["observation-tokens"]) < log.log.tokens
        assert (await shared_log(run)).log.reflection is None
