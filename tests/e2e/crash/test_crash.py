"""A proxy killed by SIGKILL at named points loses nothing, stores and observes nothing twice, and
works again at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.crash.__main__ import shared
from tests.e2e.crash.findings import leases
from tests.e2e.crash.killing import WITHIN, Outcome, Session, open_database, session
from tests.e2e.crash.plan import POINTS, Kill, planned
from tests.support.long_forms import IS_LONG
from tests.support.three_apis import APIS, Api

PER_POINT = 1
AT_ONCE = 2 if IS_LONG else 1
# every third point in the short form: a turn, an observer's call, an activation, a migration
STEP = 1 if IS_LONG else 3


@pytest.mark.slow
async def test_a_kill_at_every_point(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every third one, in the long form each. The client's own log of completed replies is the
    oracle; scripts/crash does the same 200 times."""
    folders: list[Path] = [tmp_path_factory.mktemp("proxy") for _ in range(AT_ONCE)]
    kills = planned(PER_POINT * len(POINTS))[STEP - 1 :: STEP]
    outcomes, at_the_end = await shared(kills, folders)
    assert len(outcomes) == len(kills)
    assert not [o for o in outcomes if o.found]
    assert not at_the_end
    assert max(max(o.answered, o.quiet, o.lease) for o in outcomes) < WITHIN


async def test_a_reply_is_stored_if_the_client_saw_its_end(tmp_path: Path) -> None:
    """By each API: killed behind the end, before it and behind the commit; in the long form at each
    event."""
    async with session(tmp_path) as running:
        await see_ends(running, Kill("mid stream", "reply piece", 15))
        await see_ends(running, Kill("commit to [DONE]", "turn committed", 2))
        for api in APIS:
            assert await see_ends(running, Kill("after [DONE]", "reply ended", 1), api) == [True]
            number = 1
            while IS_LONG and not all(
                await see_ends(running, Kill("mid stream", "reply piece", number), api)
            ):
                number += 1


async def see_ends(running: Session, kill: Kill, *apis: Api) -> list[bool]:
    """Kill it in the first turn of new conversations, by all APIs if none is named. Return which of
    the clients have their reply."""
    running.talking = [running.converse(api) for api in apis or APIS]
    outcome = Outcome(kill)
    await running.killed(kill)
    await running.look_behind(outcome)
    assert not outcome.found, (apis, kill)
    await running.process.start()
    return [conversation.completed > 0 for conversation in running.talking]


async def test_a_request_is_not_kept_by_the_lease_of_the_dead(tmp_path: Path) -> None:
    """Until it is over nobody works ahead on the thread; but a request that needs an observation
    waits for one and gets it."""
    async with session(tmp_path) as running:
        await running.killed(Kill("before observer", "observer asked", 1))
        # the dead one's, before another process takes its own; it may have walked an index too
        by_key = {one.key: one for one in leases(running.database)}
        conversation = next(c for c in running.talking if c.key in by_key)
        left = by_key[conversation.key]
        await running.process.start()
        for _ in range(12):
            assert all(await running.turns())
        assert int(conversation.receipt["observation-tokens"]) > 0
        assert left.holder in {lease.holder for lease in leases(running.database)}
        async with open_database(running.database) as store:
            memory = await store.load(left.key)
        assert memory.coverage > 0
        assert not memory.chunks
        assert not await running.end()
