"""Very many new messages in one request, or very much in one reply: others go on meanwhile."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from om_proxy.common.off_loop import MANY_MESSAGES
from tests.e2e.raw_upstream import chat_body, read_reason, run_with_raw_upstream
from tests.support.long_forms import IS_LONG
from tests.support.upstream_server import script_answer

COUNT = 30_000
# that the work is cut into on the event loop; it was held for a third of all work at once
LEAST_SLICES = 12


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """The collector runs on whichever thread allocates, and the heap of a whole suite takes it
    0.15 s. A server leaves what stood at its start out of collections
    (cli/commands/serve.py)."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class LoopSlices:
    """The longest stretch of CPU time that the event loop's own thread took between two of its
    passes. Not wall-clock: a machine that does other things makes it no longer."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = time.thread_time()
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        now = time.thread_time()
        self.longest, self._last = max(self.longest, now - self._last), now
        self._next = self._loop.call_later(0.001, self._pass)

    def end(self) -> float:
        self._next.cancel()
        return self.longest


def conversation(count: int) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[i % 2], "content": f"box {i} stands on pallet {i % 97}"}
        for i in range(count)
    ]


async def test_many_new_messages(tmp_path: Path) -> None:
    """Reconciling, counting and storing them is done in slices; all of them are stored, and the
    next turn knows them."""
    assert COUNT > MANY_MESSAGES
    messages = conversation(COUNT)
    async with run_with_raw_upstream(
        tmp_path, memory=", observation: {message_tokens: 10000000}"
    ) as site:
        for known in (False, True):
            body = orjson.dumps({"model": "m", "messages": messages})
            slices, begun = LoopSlices(), time.process_time()
            got = await site.ask(body, b"X-OM-Thread: t")
            used, longest = time.process_time() - begun, slices.end()
            assert (got.status, read_reason(got)) == (200, "raw")
            if not known:
                assert longest < used / LEAST_SLICES
            messages += [
                {"role": "assistant", "content": "f\u00fcnf \u20ac"},
                {"role": "user", "content": "and now?"},
            ]
        (info,) = await site.app.store.threads(None)
        assert (await site.app.store.load(info.key)).count == COUNT + 3


async def test_a_large_reply(tmp_path: Path) -> None:
    """Reading what it says, recognising and storing it is no work of the event loop's own thread:
    what is left is to pass it on."""
    message = {"role": "assistant", "content": "crate, " * (3_000_000 if IS_LONG else 1_000_000)}
    reply = orjson.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})
    longest: dict[bool, list[float]] = {False: [], True: []}
    unobserved = ", observation: {message_tokens: 100000000}"
    async with run_with_raw_upstream(tmp_path, memory=unobserved) as site:
        script = script_answer(reply, b"Content-Type: application/json")
        for thread in (b"X-OM-Thread: t", b"X-OM-Thread: u", b"X-OM-Thread: v"):
            for named in ((), (thread,)):
                slices = LoopSlices()
                got = await site.ask(chat_body("hi"), *named, script=script)
                longest[bool(named)].append(slices.end())
                assert (got.status, got.body) == (200, reply)
        for info in await site.app.store.threads(None):
            assert (await site.app.store.load(info.key)).count == 2
    # It was twelve times as long, and is twice. The first touch of new memory is left out.
    assert min(longest[True]) < 5 * min(longest[False])
