"""Turns that wait for their memory: which are held, and when one is given up."""

from __future__ import annotations

import pytest

from om_proxy.common.errors import StorageError, Unwritable
from om_proxy.engine.turns.deferred import DeferredTurns
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts, Uncommitted
from om_proxy.storage.spooling.spooled_turns import SpoolBudget
from tests.engine.turns.test_engine import Message, assistant, make_reply, user
from tests.engine.turns.test_turn import make_missed
from tests.memory.building import KEY

WORDS = "word " * 200


class Losses:
    """The threads whose turns were given up, with the cause."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.causes: list[tuple[str, str]] = []
        self.facts.subscribe(self._record, Uncommitted)

    def _record(self, fact: Uncommitted) -> None:
        assert fact.key is not None
        self.causes.append((fact.key.thread, fact.error))


async def never() -> None:
    raise StorageError("the store is away")


async def test_of_a_whole_history_the_newest_request_waits() -> None:
    """A long outage holds one request of such a client, and each one of a window that has moved."""
    for is_window, waiting in ((False, 1), (True, 19)):
        budget = SpoolBudget()
        deferred, history = DeferredTurns(budget), list[Message]()
        for number in range(20):
            sent = [*history, user(f"{number} {WORDS}")]
            turn = await make_missed(sent[-4:] if is_window else sent, make_reply(f"a{number}"))
            deferred.defer(KEY, never, turn.held_bytes, turn)
            history = [*sent, assistant(f"a{number}")]
        assert deferred.turn_count == waiting
        size = sum(len(str(message)) for message in history)
        assert is_window or budget.held_bytes < size + 20_000
        deferred.forget(KEY)
        assert budget.held_bytes == 0


async def test_a_turn_that_is_sent_again_gives_way_first() -> None:
    """Where not all fits, no turn is lost that nobody sends again."""
    losses = Losses()
    deferred = DeferredTurns(SpoolBudget(100_000), losses.facts)
    for thread in ("newest only", "whole history", "window"):
        turn = await make_missed([user("u" * 30_000)], make_reply("a"))
        turn.is_sent_again = thread == "whole history"
        deferred.defer(Key("local", thread, thread), never, turn.held_bytes, turn)
    assert losses.causes == [("whole history", "SpoolFull")]


async def test_errors_that_are_not_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are tried again for a while, since a turn was acknowledged. A change that the store can
    never take is given up at once. Later turns of the thread are stored either way."""
    losses, stored = Losses(), list[int]()
    deferred = DeferredTurns(facts=losses.facts)
    errors: list[Exception | None] = [RuntimeError("confused"), RuntimeError("confused"), None]

    async def commit_at_last() -> None:
        if error := errors.pop(0):
            raise error
        stored.append(1)

    async def commit_never() -> None:
        raise Unwritable("too large")

    async def commit() -> None:
        stored.append(3)

    for number, attempt in enumerate((commit_at_last, commit_never, commit)):
        deferred.defer(KEY, attempt, number)
    for _ in range(2):
        with pytest.raises(StorageError):
            await deferred.commit_waiting(KEY)
    await deferred.commit_waiting(KEY)
    assert stored == [1, 3]
    assert losses.causes == [(KEY.thread, "Unwritable")]

    monkeypatch.setattr("om_proxy.engine.turns.deferred.GIVE_UP_AFTER_S", 0.0)
    errors += [RuntimeError("confused")]
    deferred.defer(KEY, commit_at_last, 1)
    await deferred.commit_waiting(KEY)
    assert losses.causes[1:] == [(KEY.thread, "RuntimeError")]
    assert deferred.turn_count == 0
