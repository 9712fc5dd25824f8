"""Store the messages of a conversation that was held elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from om_proxy.common.errors import BadRequest, Conflict, StorageError
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.committing import Committer, TurnEnd, accept_any
from om_proxy.engine.turns.reconciling import Reconciler, count_messages
from om_proxy.engine.turns.turn import TakenForSideRequest
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.memory.transcript.apply_turn import append_message
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.settings.identity.keyed_hashes import fingerprint_key
from om_proxy.wire.apis.api import Request

MAX_CLOCK_SKEW_S = 60.0  # between the clocks of the proxy and of the program that dates messages
OTHER_CONVERSATION = (
    "the thread holds another conversation than these messages begin with, and an import takes "
    "nothing back; send the whole conversation, or import into a new thread"
)


class ImportedMessages(NamedTuple):
    """The result of an import."""

    created: int  # messages that were stored
    same: int  # messages that the thread had already
    version: int  # of the thread


MAX_STORE_WAIT_S = 5.0  # for messages that wait in memory until the store can be written


def check_times(times: Sequence[float | None], now: float) -> tuple[float, ...]:
    """Return the times of all messages; empty: none has one. Raise BadRequest."""
    given = tuple(at for at in times if at is not None)
    fault = None
    if given and len(given) < len(times):
        fault = "give created_at with every message besides instructions, or with none"
    elif any(later < earlier for earlier, later in pairwise(given)):
        fault = "created_at falls from one message to the next; send them in order"
    elif given and given[-1] > now + MAX_CLOCK_SKEW_S:
        fault = "created_at is later than the proxy's clock; give the time when it was said"
    if fault is not None:
        raise BadRequest(fault, param="created_at")
    return given


def require_later(memory: Memory, said_at: float) -> None:
    """Raise Conflict for a message that was said before the newest one of its thread. Within the
    difference of two clocks it may seem so."""
    if said_at < memory.newest_at - MAX_CLOCK_SKEW_S:
        raise Conflict(
            "the thread's newest message is later than created_at of a new one, and a thread grows "
            "at its end only"
        )


@dataclass(frozen=True, slots=True, eq=False)
class MessageImporter:
    """Compares messages with a thread as a request of its client is compared, and stores those that
    are new. No model is asked. Notes are made in the background, as after any turn."""

    reconciler: Reconciler
    committer: Committer
    background: Background

    async def store(
        self,
        caller: Caller,
        request: Request,
        context: MemoryContext,
        check: Callable[[Memory], None] = accept_any,
        times: Sequence[float | None] = (),
    ) -> ImportedMessages:
        """Store the new messages of a whole history. `caller.key` must be set. Raise Conflict if
        the thread holds other messages: then nothing is stored. `check`: raises an error unless the
        messages may be added to this state of the thread. `times`: when they were said, as the
        request says; they must not fall."""
        hints = Hints(history="full", said_at=check_times(times, self.committer.clock()))
        try:
            turn = await self.reconciler.reconcile(caller, request, context, hints)
        except TakenForSideRequest as exc:
            raise Conflict(OTHER_CONVERSATION) from exc
        check(turn.reconciled.memory)
        verdict, count = turn.reconciled.verdict, turn.reconciled.sent.count
        if not verdict.new:
            return ImportedMessages(0, count, turn.reconciled.memory.revision)
        if verdict.forks:
            raise Conflict(OTHER_CONVERSATION)
        end = None
        if hints.said_at:
            require_later(turn.reconciled.memory, hints.said_at[verdict.new[0]])
            end = TurnEnd(turn.asked_at)  # else the end of the turn would be the messages' time
        memory = (await self.committer.commit(turn, end, check)).memory
        if memory is None:
            # overtaken by a turn or a forgetting; asked again, it is compared anew
            raise Conflict("the thread has changed while its messages came; send them again")
        await self._finish(memory, turn.work_context)
        created = len(verdict.new)
        return ImportedMessages(created, count - created, memory.revision)

    async def append(
        self,
        caller: Caller,
        request: Request,
        context: MemoryContext,
        check: Callable[[Memory], None],
        times: Sequence[float | None],
    ) -> ImportedMessages | None:
        """Store the only message of a request behind those that its thread has. `check`, `times`:
        as in `store`. None: the thread has no message yet, so this one begins it."""
        key, memories = caller.key, self.committer.memories
        assert key is not None
        (said_at,) = check_times(times, self.committer.clock())
        before = await memories.load(key)
        if not before.count:
            return None
        item = request.api.read_item(
            request.messages[0], key=fingerprint_key(self.reconciler.secret, key.tenant)
        )
        model, counter = request.model or "", self.reconciler.token_counter
        tokens, encoding = await count_messages(
            counter, memories.facts, key, {0: item.raw}, model, item.api
        )
        now, created = self.committer.clock(), 0

        def change(memory: Memory) -> Memory:
            nonlocal created
            check(memory)
            after = append_message(memory, item, tokens[0], encoding, said_at, now)
            created = after.next_seq - memory.next_seq
            return after

        if change(before) is not before:
            require_later(before, said_at)
        memory = await memories.update(key, change, row_id=before.row_id, must_exist=True)
        await self._finish(memory, context)
        return ImportedMessages(created, 1 - created, memory.revision)

    async def _finish(self, memory: Memory, context: MemoryContext) -> None:
        """Wait until the messages are stored, and have them noted in the background."""
        key = memory.key
        if memory.version < 0 and not await self._is_stored(key):
            raise StorageError("the messages cannot be stored now; send them again later")
        if self.committer.memories.finds_due_work:
            self.background.wake(key if memory.scope == "thread" else resource_key(key), context)

    async def _is_stored(self, key: Key) -> bool:
        """Wait until the messages that wait in memory are stored; False: they still wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_STORE_WAIT_S):
                await self.committer.memories.wait_until_stored(key)
        return (await self.committer.memories.latest(key)).version > 0
