"""Wait for work on a server, at most for so long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from om_proxy.common.errors import StorageError

T = TypeVar("T")

# what no request waits for: forgetting, pruning, sums over the store
LONG_TIMEOUT_S = 60.0
MOVE_TIMEOUT_S = 600.0  # of a whole resource, or of all rows of a memory


class Timer(Protocol):
    def cancel(self) -> None: ...


async def wait_for_work(
    task: asyncio.Task[T],
    under_way: set[asyncio.Task[Any]],
    limit_s: float,
    start_timer: Callable[[float, Callable[[], None]], Timer],
) -> T:
    """Return the result of the task. After `limit_s` cancel it and raise StorageError at once: the
    task stays in `under_way` until it ends. If the caller is cancelled, the task goes on.
    `start_timer`: calls back once after so many seconds."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give_up() -> None:
        task.cancel()
        if not outcome.done():
            outcome.set_exception(StorageError(f"no answer of the server in {limit_s:g} s"))

    def take_outcome(done: asyncio.Task[T]) -> None:
        under_way.discard(done)
        deadline.cancel()
        error = None if done.cancelled() else done.exception()
        if outcome.done():  # nobody waits for it any more
            return
        if done.cancelled():
            outcome.set_exception(StorageError("the store was closed"))
        elif error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(done.result())

    deadline = start_timer(limit_s, give_up)
    under_way.add(task)
    task.add_done_callback(take_outcome)
    return await outcome
