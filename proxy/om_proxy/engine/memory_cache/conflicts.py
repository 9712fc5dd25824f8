"""Try a commit again while other commits come first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from om_proxy.common.errors import Conflict

_T = TypeVar("_T")

# A commit conflicts only if another turn of the thread came first.
MAX_COMMIT_ATTEMPTS = 20


async def retry_on_conflict(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Run the attempt, and again each time another commit came first. Return its result, or raise
    Conflict after the last attempt."""
    for _ in range(MAX_COMMIT_ATTEMPTS):
        try:
            return await attempt()
        except Conflict:
            continue
    raise Conflict(
        f"gave up after {MAX_COMMIT_ATTEMPTS} attempts: other changes to the thread always came first; try again"
    )
