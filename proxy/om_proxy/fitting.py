"""A prompt that the upstream says is too long for the model: memory makes it shorter while the request waits, if it can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from om_proxy.background import Background
from om_proxy.memories import Memories
from om_proxy.memory import account, lifecycle, overflow
from om_proxy.memory.lifecycle import Observe
from om_proxy.standing import Standings
from om_proxy.turn import Turn


class Fitting:
    """`store` keeps what a request brought, as unanswered; `build` makes the turn's prompt anew (assembly.py)."""

    def __init__(
        self,
        memories: Memories,
        background: Background,
        standings: Standings,
        clock: Callable[[], float],
        *,
        store: Callable[[Turn], Awaitable[None]],
        build: Callable[[Turn], Awaitable[None]],
    ) -> None:
        self._memories = memories
        self._background = background
        self._standings = standings
        self._clock = clock
        self._store = store
        self._build = build

    def can_shorten(self, turn: Turn, *, accepted: bool) -> bool:
        """Whether memory might make the client's own prompt shorter, which the upstream says is too long for the model.

        `accepted`: the refusal shows that the upstream knows the caller, so that a thread's first request, too, may be stored and
        observed on its word.
        """
        virtual, through = turn.standing.virtual, self._may_leave(turn)
        if not (turn.stores and turn.rewrites and (accepted or turn.standing.memory.turns)):
            return False
        if not (overflow.ready(virtual, through) or self._unobserved(turn)):
            return False
        return overflow.can_shrink(virtual, account.received(virtual, turn.sent), through)

    async def shorten(self, turn: Turn) -> bool:
        """Have what may leave the prompt observed, as far as the block step's deadline allows, make all of it active that is there,
        and build the prompt anew. Whether it is shorter than the client's, as it then stands in `turn.body`.

        What a fork brings cannot be observed before its reply has come; what lies before it can be. What is not done in time goes on
        in the background: its messages are stored, so a later request finds it done.
        """
        before = turn.standing.virtual.coverage
        await self._observe_all(turn)
        if ids := overflow.ready(turn.standing.virtual, self._may_leave(turn)):
            activated = partial(lifecycle.activated, ids=ids, now=self._clock())
            await self._memories.update(turn.key, activated, born=turn.born)
            await self._standings.again(turn)
        if turn.standing.virtual.coverage <= before:
            return False
        turn.body = None
        await self._build(turn)
        return turn.body is not None and turn.receipt["tokens-sent"] < turn.receipt["tokens-received"]

    async def _observe_all(self, turn: Turn) -> None:
        ends = asyncio.get_running_loop().time() + turn.call.effective.limits.block_timeout
        due = self._unobserved(turn)
        if due and turn.standing.rec.cut is None:
            await self._store(turn)
        while due and (left := ends - asyncio.get_running_loop().time()) > 0:
            if not await self._background.done_within(turn.key, due, turn.work, left):
                return
            await self._standings.again(turn)
            following = self._unobserved(turn)
            due = following if following and following.after > due.after else None

    def _unobserved(self, turn: Turn) -> Observe | None:
        most = turn.call.effective.limits.observe_at
        return overflow.unobserved(turn.standing.virtual, self._may_leave(turn), most, self._clock())

    def _may_leave(self, turn: Turn) -> int:
        """seq through which messages may be observed now and leave this prompt."""
        standing = turn.standing
        if standing.base is not standing.memory:
            return 0  # a fork behind coverage is written with its reply
        coverable = lifecycle.coverable(standing.virtual)
        return coverable if standing.rec.cut is None else min(coverable, standing.rec.cut)
