"""A store whose reads merge what is stored with turns that are only kept in memory."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.model import Generation, Key, Message
from om_proxy.storage.base import Outline
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.spooled_turns import SpooledTurns


class MergingStore(ForwardingStore):
    """Reads messages, generations and tails as if the turns of `spool` were stored. A subclass
    adds turns to it, and reads whole memories."""

    def __init__(self, spool: SpooledTurns) -> None:
        self.spool = spool

    async def outline(self, key: Key) -> Outline:
        stored = await super().outline(key)
        spooled = self.spool.find_thread(key)
        return spooled.merge_outline(key, stored) if spooled else stored

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        if not (spooled := self.spool.find_thread(key)):
            return await super().messages(key, after, through, limit)
        current = spooled.current[key]
        covered = current.coverage if through is None else min(through, current.coverage)
        older = await super().messages(key, after, covered, limit) if after < covered else ()
        newer = [m for m in current.tail if m.seq > after and (through is None or m.seq <= through)]
        return (*older, *newer)[:limit]

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        stored = await super().messages_by_seq(key, seqs)
        if not (spooled := self.spool.find_thread(key)):
            return stored
        by_seq = spooled.merge_messages(key, {m.seq: m for m in stored})
        return tuple(by_seq[seq] for seq in sorted(set(seqs)) if seq in by_seq)

    async def generations(self, key: Key, before: int) -> tuple[Generation, ...]:
        stored = await super().generations(key, before)
        spooled = self.spool.find_thread(key)
        return spooled.merge_generations(key, before, stored) if spooled else stored

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        stored_tails = await super().other_thread_tails(key, threads, messages)
        if not (resource := self.spool.find_resource(key)):
            return stored_tails
        memories = [resource.current[k] for k in resource.threads if k != key]
        latest_first = sorted(
            (m for m in memories if m.tail), key=lambda m: m.turn_at or 0.0, reverse=True
        )
        spooled_tails = [(m.key, m.tail[-messages:]) for m in latest_first if m.scope == "resource"]
        spooled_keys = {m.key for m in memories}
        other_tails = [(other, tail) for other, tail in stored_tails if other not in spooled_keys]
        return (*spooled_tails, *other_tails)[:threads]
