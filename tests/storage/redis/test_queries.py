"""What a refresh reads of a thread that was committed since."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from om_proxy.memory.model import Memory
from om_proxy.storage.redis import queries
from tests.storage.contract import Opener
from tests.storage.memory_builder import KEY, MemoryBuilder


@pytest.mark.parametrize(
    ("step", "is_read_in_full"),
    [
        (lambda t: t.chat(2), False),
        (lambda t: t.chunk(2), False),
        (lambda t: t.activate(1), False),
        (lambda t: t.cover(3), False),
        (lambda t: t.keep_reflection(), False),
        (lambda t: t.supersede([5, 6]).chat(1, "instead"), True),
        (lambda t: t.swap_reflection(), False),
    ],
    ids=["turn", "buffered note", "activation", "observation", "reflection", "fork", "swap"],
)
async def test_what_has_only_grown_is_read_as_changes(
    opener: Opener,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[MemoryBuilder], object],
    is_read_in_full: bool,
) -> None:
    """A replica that did not serve the last turn reads that turn, and not the thread."""
    thread = MemoryBuilder().chat(9)
    store = await opener()
    memory = await store.commit(Memory(key=KEY), thread.memory())
    thread.cover(2).cover(2).chunk(1)
    held = await store.commit(memory, thread.memory())
    step(thread)
    newest = await store.commit(held, thread.memory())
    full_reads = 0
    decode = queries.decode_memory

    def count(*parts: object) -> Memory:
        nonlocal full_reads
        full_reads += 1
        return decode(*parts)  # type: ignore[arg-type] # as they come

    monkeypatch.setattr(queries, "decode_memory", count)
    assert await store.refresh(held) == newest
    assert bool(full_reads) is is_read_in_full
    await store.close()
