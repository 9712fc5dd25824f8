"""Read what a Redis keeps of a resource, and make a change that was computed from it again as long as
others write to the resource meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from om_proxy.common.errors import StorageError, UnopenedText
from om_proxy.storage.encoding import decode_text
from om_proxy.storage.redis.session import Session

T = TypeVar("T")

# of a resource that others write to all the time
MAX_ATTEMPTS = 50
MAX_UNOPENED_ATTEMPTS = 10
FIRST_PAUSE_S, MAX_PAUSE_S = 0.001, 0.05


class ResourceState(NamedTuple):
    """The stored state of a resource."""

    revision: int  # 0: nothing
    threads: dict[str, bool]  # whether each shares the log; the shared log itself stands under ''
    told: frozenset[str]  # the threads whose prompts tell of others
    quoting: frozenset[str]  # the threads with look-ups


async def read_resource(session: Session, tenant: str, resource: str) -> ResourceState:
    """Read the revision first: what is written after it makes the changes fail."""
    names = session.keys
    revision, threads, told, quoting = await session.call_many(
        [
            ("GET", names.of_resource("revision", tenant, resource)),
            ("HGETALL", names.of_resource("threads", tenant, resource)),
            ("SMEMBERS", names.of_resource("told", tenant, resource)),
            ("SMEMBERS", names.of_resource("quoting", tenant, resource)),
        ]
    )
    pairs = zip(threads[::2], threads[1::2], strict=True)
    return ResourceState(
        int(revision or 0),
        {decode_text(name): is_shared == b"1" for name, is_shared in pairs},
        frozenset(map(decode_text, told)),
        frozenset(map(decode_text, quoting)),
    )


async def try_until_applied(attempt: Callable[[], Awaitable[T | None]]) -> T:
    """Try again as long as an attempt returns None: others wrote in between. A text that does not
    open may be of a memory that has got another key meanwhile."""
    pause_s = FIRST_PAUSE_S
    unopened_left = MAX_UNOPENED_ATTEMPTS
    for _ in range(MAX_ATTEMPTS):
        try:
            result = await attempt()
        except UnopenedText:
            unopened_left -= 1
            if not unopened_left:
                raise
            result = None
        if result is not None:
            return result
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
    raise StorageError("the resource is written to all the time; try again")
