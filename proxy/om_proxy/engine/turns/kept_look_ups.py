"""Keep no look-ups that quote a thread which was forgotten while they were made.

Forgetting takes what is stored by then. So the events of forgettings are read before the turn is
stored; what is forgotten between that and the commit makes the commit conflict (`Store.commit`).
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.turns.turn import OpenedTurn
from om_proxy.memory.model import Memory
from om_proxy.memory.recall.kept_look_ups import list_named_labels, quotes_thread
from om_proxy.memory.rounds import LookedUp

# Two processes measure the store's clock apart. A thread that was forgotten so long before the
# request came, and is here again, only costs its quotes.
CLOCK_MARGIN_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class LookUpKeeper:
    memories: Memories

    async def choose_kept(self, turn: OpenedTurn, look_ups: LookedUp | None) -> LookedUp | None:
        """Return the look-ups if they may be stored, else None."""
        return None if look_ups is None or await self._quotes_gone(turn, look_ups) else look_ups

    async def check_stored(
        self, turn: OpenedTurn, memory: Memory, look_ups: LookedUp | None
    ) -> Memory:
        """Take look-ups that quote others out of a turn that waits for the store: a forgetting
        would not find them. Return the memory as it is then."""
        if memory.version > 0 or look_ups is None or not list_named_labels(look_ups):
            return memory

        def drop(stored: Memory) -> Memory:
            tail = tuple(
                replace(m, look_ups=None) if m.look_ups == look_ups else m for m in stored.tail
            )
            return replace(stored, tail=tail) if tail != tuple(stored.tail) else stored

        return await self.memories.update(turn.key, drop, turn.scope, row_id=memory.row_id)

    async def _quotes_gone(self, turn: OpenedTurn, look_ups: LookedUp) -> bool:
        """Return whether the look-ups quote a thread that was forgotten since the request came."""
        if not list_named_labels(look_ups):
            return False
        since = turn.asked_at - CLOCK_MARGIN_S
        gone = await self.memories.forgettings.list_labels_since(turn.key.tenant, since)
        return any(quotes_thread(look_ups, label) for label in gone)
