"""Which waiting thread gets the next slot."""

from __future__ import annotations

from collections import Counter

from om_proxy.engine.background.scheduler import ThreadQueue
from om_proxy.memory.model import Key


def threads_of(tenant: str, count: int) -> list[Key]:
    return [Key(tenant, "resource", f"{tenant} {n}") for n in range(count)]


def drained(queue: ThreadQueue) -> str:
    """List the threads in the order they come, if every slot is given back at once."""
    order = []
    while key := queue.take_next(Counter()):
        order.append(key.thread)
    return ", ".join(order)


def test_tenants_take_turns() -> None:
    """Within a tenant, first come, first served."""
    queue = ThreadQueue()
    for key in (*threads_of("a", 4), *threads_of("b", 2), *threads_of("c", 1)):
        queue.join(key)
    assert drained(queue) == "a 0, b 0, c 0, a 1, b 1, a 2, a 3"


def test_the_tenant_served_last_is_not_next() -> None:
    """The other tenant is next, even if it came only now."""
    queue = ThreadQueue()
    for key in threads_of("a", 3):
        queue.join(key)
    assert queue.take_next(Counter()) == Key("a", "resource", "a 0")
    queue.join(*threads_of("b", 1))
    assert drained(queue) == "b 0, a 1, a 2"


def test_the_tenant_that_holds_fewer_slots_is_next() -> None:
    """Work that lasts is counted while it lasts, so that a tenant with slow models has its share
    and not all."""
    queue = ThreadQueue()
    for key in (*threads_of("a", 2), *threads_of("b", 2)):
        queue.join(key)
    assert [queue.take_next(Counter(a=2)) for _ in range(3)] == [
        *threads_of("b", 2),
        *threads_of("a", 1),
    ]


def test_a_thread_waits_once() -> None:
    """Woken again, it keeps its place in the line; who leaves it is gone."""
    queue = ThreadQueue()
    first, second = threads_of("a", 2)
    for key in (first, second, first):
        queue.join(key)
    assert len(queue) == 2
    queue.leave(first)
    queue.leave(*threads_of("b", 1))
    assert drained(queue) == "a 1"
    assert (len(queue), queue.take_next(Counter())) == (0, None)


def test_a_full_queue_drops_the_newest_of_the_longest() -> None:
    """A flood crowds out nobody but itself."""
    queue = ThreadQueue(max_threads=4)
    for key in (*threads_of("quiet", 1), *threads_of("busy", 9), *threads_of("other", 1)):
        queue.join(key)
    assert len(queue) == 4
    assert drained(queue) == "quiet 0, busy 0, other 0, busy 1"


def test_a_queue_full_of_single_threads_drops_the_newest() -> None:
    """A thread that waits already is not dropped."""
    queue = ThreadQueue(max_threads=2)
    for tenant in "abc":
        queue.join(*threads_of(tenant, 1))
    assert drained(queue) == "a 0, b 0"
