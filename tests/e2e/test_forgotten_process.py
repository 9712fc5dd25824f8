"""After a thread was forgotten, the process that served it holds none of its words either."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from om_proxy.app import App
from om_proxy.bounded_cache import BoundedCache
from tests.e2e.running import Running, run_with_scripted_models

WORD = "canarywort"


def walk(app: App) -> Iterator[object]:
    """Yield all objects that the proxy and any cache of the process lead to, without what every
    program shares: modules, types and the event loop."""
    roots = [app, *(one for one in gc.get_objects() if isinstance(one, BoundedCache))]
    shared = {id(vars(module)) for module in list(sys.modules.values())}
    seen = set(map(id, roots))
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        yield one
        for found in _list_referents(one):
            if id(found) in seen or id(found) in shared:
                continue
            if isinstance(found, ModuleType | type | FrameType | asyncio.AbstractEventLoop):
                continue
            seen.add(id(found))
            waiting.append(found)


def _list_referents(one: object) -> list[Any]:
    if isinstance(one, FunctionType):  # its globals are its module's
        return [one.__closure__, one.__defaults__, one.__kwdefaults__]
    return gc.get_referents(one)


def count_words(app: App) -> int:
    """Count the texts and bytes in the process that hold the word, and that the app leads to."""
    gc.collect()
    return sum(_holds_word(one) for one in walk(app))


def _holds_word(one: object) -> bool:
    if isinstance(one, bytes | bytearray):
        return WORD.encode() in one
    return isinstance(one, str) and WORD in one


async def fill(run: Running, resource: str) -> None:
    headers = {"x-om-resource": resource, "x-om-scope": "resource"}
    for number in range(4):
        for thread in ("first", "second"):
            await run.chat(thread, **headers).say(
                f"Remember that {WORD}-{number} stands at the dock. " * 12, stream=number % 2 == 0
            )
            await run.app.background.wait_idle()


@pytest.mark.parametrize("path", ["resources/dock", "tenants/{tenant}"])
async def test_a_process_holds_nothing_of_what_was_forgotten(tmp_path: Path, path: str) -> None:
    async with run_with_scripted_models(tmp_path, more="identity: {scope_override: true}") as run:
        await fill(run, "dock")
        assert count_words(run.app) > 0
        memories = await run.memories()
        tenant = memories[0].key.tenant
        del memories
        answer = await run.http.delete(
            f"{run.base}/om/v1/{path.format(tenant=tenant)}",
            headers={"authorization": "Bearer sk-a"},
        )
        assert answer.status_code == 200, answer.text
        await run.app.background.wait_idle()
        assert count_words(run.app) == 0
