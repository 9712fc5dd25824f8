"""After a thread was forgotten, the process that served it holds none of its words either: nothing
that its objects and caches lead to. What CPython has freed and not yet given out again may hold
words, and no program can overwrite it: texts are immutable."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from om_proxy.app.app import App
from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.testing.scripted import Fault, Message, ScriptedServer
from tests.agents.onnx_file import write_model
from tests.e2e.running import Running, run_with_scripted_models

WORD = "canarywort"


def walk(app: App) -> Iterator[object]:
    """Yield all objects that the proxy and any cache of the process lead to, without what every
    program shares: modules, types and the event loop."""
    caches = (one for one in gc.get_objects() if isinstance(one, BoundedCache))
    roots = [app, *caches, *_list_module_values()]
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


def _list_module_values() -> list[object]:
    """Return what the proxy's modules hold, such as caches of its functions. The collector does not
    list what was frozen after the start. What libraries define may be the test's client's."""
    return [
        value
        for name, module in sys.modules.items()
        if name.startswith("om_proxy.")
        for value in vars(module).values()
        if not isinstance(value, ModuleType | type)
        and str(getattr(value, "__module__", name)).startswith("om_proxy.")
    ]


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


class Seeker(ScriptedServer):
    """An actor that searches for the word where it is asked for something, and tells nothing."""

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        if messages[-1]["content"] != "Where does it stand?":
            return {"role": "assistant", "content": "Noted."}
        arguments = json.dumps({"mode": "search", "query": f"{WORD} dock"})
        call = {"name": "recall", "arguments": arguments}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "own", "type": "function", "function": call}],
        }


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["indexed", "encrypted"])
async def test_a_process_holds_nothing_of_what_was_looked_up(
    tmp_path: Path, is_encrypted: bool
) -> None:
    """A thread is searched by the model and by people, and then forgotten. The words of the index,
    queries and quotes go with it."""
    vectors = f", vector: true, embedding_model: 'local:{write_model(tmp_path, [(1.0, 0.0)] * 6)}'"
    retrieval = f"enabled: true, offer: always{'' if is_encrypted else vectors}"
    storage = f"url: 'sqlite:///{tmp_path}/om.db'"
    if is_encrypted:
        storage += f", encryption_key: {bytes(range(32)).hex()}"
    async with run_with_scripted_models(
        tmp_path,
        f"scope: resource, retrieval: {{{retrieval}, timeout: 60s}}",
        models=Seeker(),
        storage=storage,
    ) as run:
        headers = {"x-om-resource": "dock"}
        await run.chat("first", **headers).say(f"The {WORD} stands at the dock.")
        asking = run.chat("second", **headers)
        await asking.say("Hello.")
        await asking.say("Where does it stand?")
        await run.app.background.wait_idle()
        assert any(
            message["role"] == "tool" and WORD in message["content"]
            for message in json.loads(run.models.requests_to("scripted-actor")[-1].body)["messages"]
        )
        own = {"authorization": "Bearer sk-a"}
        searched = await run.http.get(
            f"{run.base}/om/v1/search", params={"q": WORD, "resource": "dock"}, headers=own
        )
        assert WORD in searched.text
        assert count_words(run.app) > 0
        answer = await run.http.delete(
            f"{run.base}/om/v1/threads/first", params={"resource": "dock"}, headers=own
        )
        assert answer.status_code == 200, answer.text
        await run.app.background.wait_idle()
        assert count_words(run.app) == 0
