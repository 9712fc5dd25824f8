"""Counts what an idle server has imported, and the bytes of its Python objects, in a process of its
own: `python -X tracemalloc -m tests.bench.idle`. Memory is on, and no request has come.

Unlike the memory of a process, these are the same on each machine with the same packages. They leave
out what libraries in C hold by themselves.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
import tracemalloc
from typing import Any

from starlette.types import Message

import om_proxy.cli.serving  # noqa: F401 - `serve` has it
from om_proxy.app.app import App
from om_proxy.settings.config import parse

CONFIG = """
upstream: [{{name: closed, base_url: "http://127.0.0.1:9/v1"}}]
storage: {{url: "sqlite:///{folder}/om.db"}}
memory: {{model: openai/scripted, api_key: sk-observer}}
telemetry: {{log: json}}
"""


async def is_ready(app: App) -> bool:
    """Return whether all is loaded that the first request with memory needs."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app.send_ready({"type": "http", "query_string": b""}, send)
    return bool(sent[0]["status"] == 200)


async def count_idle(folder: str) -> dict[str, int]:
    """Start the app, and return its modules and the KiB of its objects."""
    app = App(parse(CONFIG.format(folder=folder)))
    told, answers = asyncio.Queue[Any](), asyncio.Queue[Any]()
    life = asyncio.create_task(app({"type": "lifespan", "state": {}}, told.get, answers.put))
    await told.put({"type": "lifespan.startup"})
    started = await answers.get()
    if started["type"] != "lifespan.startup.complete":
        raise RuntimeError(f"the app did not start: {started}")
    async with asyncio.timeout(240):
        while not await is_ready(app):  # noqa: ASYNC110 - only an answer tells it
            await asyncio.sleep(0.05)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    found = {"idle, modules": len(sys.modules), "idle, KiB of objects": size >> 10}
    await told.put({"type": "lifespan.shutdown"})
    await life
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as own_folder:
        print(json.dumps(asyncio.run(count_idle(own_folder))))
