"""Judge the turns whose reply did not wait for its commit: which of them must be stored all the same
(docs/contributing/behaviour.md#durable)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from om_proxy.edge.turn_closing import MAX_COMMIT_WAIT_S
from tests.e2e.replicas.history import Outage, Turn

# of a turn in a process whose store is there
MAX_WAIT_S = 20.0


@dataclass(frozen=True)
class ServedBy:
    """What happened to the process that answered a turn."""

    stops: Sequence[tuple[float, float]] = ()  # from when to when
    kills: Sequence[float] = ()
    # those at which it said that turns wait in it, as on a machine too busy to store them in time
    kills_with_turns: Sequence[float] = ()
    # when it could not reach the store, from when to when
    without_store: Sequence[tuple[float, float]] = ()


def judge_late(
    turn: Turn, process: ServedBy, outages: Sequence[Outage], *, is_said_once: bool
) -> Turn:
    """Return the turn with what is known of it if its reply did not wait for its commit: memory was
    away, or the commit took longer than a reply waits. Such a turn ends with a process that is
    killed before it is stored. Else it must be stored, unless its client says the same again:
    `is_said_once`."""
    stopped_s = sum(
        max(0.0, min(to, turn.ended_at) - max(since, turn.began_at)) for since, to in process.stops
    )
    is_late = turn.ended_at - turn.began_at - stopped_s >= MAX_COMMIT_WAIT_S
    if not turn.reply or (turn.has_memory and not is_late):
        return turn
    healed_at = max(
        [turn.ended_at + MAX_WAIT_S] + [o.ended_at for o in outages if o.began_at <= turn.ended_at]
    )
    was_killed = any(turn.began_at <= killed_at <= healed_at for killed_at in process.kills)
    was_killed = was_killed or any(turn.began_at <= at for at in process.kills_with_turns)
    return turn._replace(outcome="unknown", has_waited=is_said_once and not was_killed)
