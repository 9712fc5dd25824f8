"""Run memory work with a deadline, and record its failure with the thread."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

from om_proxy import facts
from om_proxy.background.performers.reflect import find_sources
from om_proxy.errors import ModelError, ModelTimeout, OmError
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Decision, Reflect
from om_proxy.memory.model import Memory
from om_proxy.memory_cache import Memories
from om_proxy.policy import PolicyInForce

# a reflection writes nearly as much as it reads, so it may take the timeout once for each so many
REFLECTED_TOKENS_PER_TIMEOUT = 10_000
TIMEOUT_MESSAGE = "the memory model did not answer in time"


class WorkGuard:
    """The deadline and the failure record of memory work."""

    def __init__(
        self,
        memories: Memories,
        policies: PolicyInForce,
        *,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._memories = memories
        self._policies = policies
        self._clock = clock
        self._jitter = jitter

    async def run(
        self,
        memory: Memory,
        decision: Decision,
        work: Awaitable[None],
        *,
        raise_timeout: bool = False,
    ) -> bool:
        """Return whether the work ended in time and without a failure of its model. Record a
        failure with the thread.

        `raise_timeout`: raise TimeoutError after recording that the deadline was missed.
        """
        try:
            async with asyncio.timeout(self._timeout_s(memory, decision)):
                await work
            return True
        except TimeoutError:
            await self.record_failure(memory, decision, ModelTimeout(TIMEOUT_MESSAGE))
            if raise_timeout:
                raise
            return False
        except ModelError as exc:
            failure: ModelError = exc
        except OmError:
            raise  # a failure of the store says nothing against the model
        # any exception of a memory model's library counts as its failure: the thread backs off
        except Exception as exc:
            failure = ModelError(type(exc).__name__)
        await self.record_failure(memory, decision, failure)
        return False

    def _timeout_s(self, memory: Memory, decision: Decision) -> float:
        size = (
            sum(o.tokens for o in find_sources(memory, decision))
            if isinstance(decision, Reflect)
            else 0
        )
        return self._policies.current.call_timeout_s * max(size / REFLECTED_TOKENS_PER_TIMEOUT, 1.0)

    async def record_failure(self, memory: Memory, decision: Decision, exc: ModelError) -> None:
        what: Literal["observe", "reflect"] = (
            "reflect" if isinstance(decision, Reflect) else "observe"
        )
        failures = memory.failures.count + 1
        self._memories.facts.emit(
            facts.MemoryWorkFailed(memory.key, what, exc.code, failures, exc.advice)
        )
        cause = f"{what} {exc.cause}"
        record: Callable[[Memory], Memory]
        if isinstance(decision, Reflect):
            record = partial(transitions.mark_unproductive, size=memory.log.tokens, cause=cause)
        else:
            record = partial(
                transitions.record_failure, now=self._clock(), jitter=self._jitter(), cause=cause
            )
        await self._memories.update(memory.key, record, row_id=memory.row_id)
