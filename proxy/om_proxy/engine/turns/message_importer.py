"""Store the messages of a conversation that was held elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.committing import Committer, accept_any
from om_proxy.engine.turns.reconciling import Reconciler
from om_proxy.engine.turns.turn import TakenForSideRequest
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.wire.apis.api import Request

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
    ) -> ImportedMessages:
        """Store the new messages of a whole history. `caller.key` must be set. Raise Conflict if
        the thread holds other messages: then nothing is stored. `check`: raises an error unless the
        messages may be added to this state of the thread."""
        try:
            turn = await self.reconciler.reconcile(caller, request, context, Hints(history="full"))
        except TakenForSideRequest as exc:
            raise Conflict(OTHER_CONVERSATION) from exc
        check(turn.reconciled.memory)
        verdict, count = turn.reconciled.verdict, turn.reconciled.sent.count
        if not verdict.new:
            return ImportedMessages(0, count, turn.reconciled.memory.revision)
        if verdict.forks:
            raise Conflict(OTHER_CONVERSATION)
        memory = (await self.committer.commit(turn, check=check)).memory
        if memory is None:
            # overtaken by a turn or a forgetting; asked again, it is compared anew
            raise Conflict("the thread has changed while its messages came; send them again")
        if memory.version < 0 and not await self._is_stored(turn.key):
            raise StorageError("the messages cannot be stored now; send them again later")
        self.background.wake(
            turn.key if turn.scope == "thread" else resource_key(turn.key), turn.work_context
        )
        created = len(verdict.new)
        return ImportedMessages(created, count - created, memory.revision)

    async def _is_stored(self, key: Key) -> bool:
        """Wait until the messages that wait in memory are stored; False: they still wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_STORE_WAIT_S):
                await self.committer.memories.wait_until_stored(key)
        return (await self.committer.memories.latest(key)).version > 0
