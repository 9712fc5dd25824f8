"""An asyncio event loop on virtual time: it never waits, it has no threads, and it does the same
thing every time."""

from __future__ import annotations

import asyncio
from asyncio import base_events
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """Nothing is ready and no timer is set: everybody waits for somebody else, for ever."""


class _Jumping:
    """Stands where a selector stands: instead of waiting for a time it makes it that time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        self._loop.now += timeout
        return []


class VirtualLoop(base_events.BaseEventLoop):
    """`time()` is seconds since the loop was made, and passes only when nobody has anything to do.

    What asyncio promises holds: callbacks run in the order they were registered. Interleavings come
    from what is awaited, which takes seeded times. Work for threads is done in place, and its
    result arrives `thread_time()` seconds later.
    """

    def __init__(self, thread_time: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Jumping(self)
        self._clock_resolution = 1e-9
        self._thread_time = thread_time

    def time(self) -> float:
        return self.now

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:  # type: ignore[override] - run at once
        done: asyncio.Future[Any] = self.create_future()
        try:
            result, error = func(*args), None
        except Exception as exc:
            result, error = None, exc
        self.call_later(self._thread_time(), _settle, done, result, error)
        return done

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody is asleep who would have to be woken."""


def _settle(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.cancelled():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


def run(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, T]],
    thread_time: Callable[[], float] = lambda: 0.0,
) -> T:
    """Run to the end on a loop of its own; what is still under way then is cancelled."""
    loop = VirtualLoop(thread_time)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))
