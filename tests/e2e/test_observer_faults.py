"""Memory never makes a working call fail (docs/contributing/behaviour.md#fail-open), and a failure
never moves coverage (docs/contributing/behaviour.md#answers)."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.engine.policy import Policy
from om_proxy.memory.model import Key
from om_proxy.testing.scripted import Fault
from tests.e2e.running import run_with_scripted_models

STORY = "The deploy window for service {n} is {n} minutes wide, and the ticket is OPS-{n}. " * 6

FAULTS = [
    pytest.param(Fault(kind="nothing", model="scripted-observer"), id="answers nothing"),
    pytest.param(Fault(kind="prose", model="scripted-observer"), id="answers prose"),
    pytest.param(Fault(kind="refusal", model="scripted-observer"), id="refuses"),
    pytest.param(Fault(kind="loop", model="scripted-observer"), id="loops"),
    pytest.param(Fault(kind="http", model="scripted-observer", status=500), id="fails"),
    pytest.param(Fault(kind="http", model="scripted-observer", status=401), id="refuses the key"),
    pytest.param(Fault(kind="hang", model="scripted-observer"), id="never answers"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_failing_observer(tmp_path: Path, fault: Fault, stream: bool) -> None:
    """Every call succeeds with the upstream's answer, the receipt says so, coverage stays, and it
    recovers by itself."""
    hangs = fault.kind == "hang"
    async with run_with_scripted_models(tmp_path, model_timeout_s=0.4 if hangs else 60.0) as run:
        run.models.faults.switch(fault)
        chat, receipts = run.chat(), []
        for n in range(12):
            reply, receipt = await chat.say(STORY.format(n=n), stream=stream)
            assert reply.startswith("Noted: ")
            receipts.append(receipt)
        memory = await run.memory()
        assert (memory.coverage, memory.log.entries, memory.chunks) == (0, (), ())
        assert memory.count == 24
        assert receipts[-1]["reason"] in ("observer-failing", "observer-late")
        assert {r["status"] for r in receipts} == {"raw"}

        run.models.faults.switch()
        run.app._policies._policy = Policy(run.app._watched.current, 60.0)  # patient again
        for n in range(12, 18):
            run.clock.now += 7 * 3_600  # beyond every back-off
            await chat.say(STORY.format(n=n), stream=stream)
            await run.app.background.wait_idle()
        memory = await run.memory()
        assert memory.coverage > 0
        assert memory.failures.count == 0
        _, receipt = await chat.say("And now?", stream=stream)
        assert receipt["status"] == "applied"
        assert "reason" not in receipt


async def test_an_observer_that_hangs_is_waited_for_no_longer_than_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `block_after` on one request waits, and at the deadline it goes on with the raw history;
    while the same call hangs, the requests that follow do not wait for it again (8 of 8 waited
    once)."""
    left_s: list[float] = []
    async with run_with_scripted_models(tmp_path) as run:
        find_remaining_wait = run.app.background.remaining_wait

        def note_remaining_wait(key: Key, seconds: float) -> float:
            left_s.append(find_remaining_wait(key, seconds))
            return left_s[-1]

        monkeypatch.setattr(run.app.background, "remaining_wait", note_remaining_wait)
        run.models.faults.switch(Fault(kind="hang", model="scripted-observer"))
        chat = run.chat()
        receipts = [(await chat.say(STORY.format(n=n)))[1] for n in range(12)]
        late = [r for r in receipts if r.get("reason") == "observer-late"]
        assert len(late) > 1
        assert float(late[0]["overhead-ms"]) >= 300  # block_timeout is 300 ms
        assert left_s == [0.3] + [0.0] * (len(late) - 1)
        assert (await run.memory()).coverage == 0
        await run.app.background.close(grace=1.0)
