"""A process with an encrypted store, which does what its standard input says, line by line, and
answers each with a line: `python -m tests.support.key_holder URL PREFIX`."""

from __future__ import annotations

import asyncio
import gc
import sys

from om_proxy.app.store_opening import open_store
from om_proxy.memory.model import Key, Memory
from om_proxy.observability.logs import configure_log
from om_proxy.settings.config import StorageSettings
from om_proxy.storage.base import Store
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.shared_machine import share_log

MASTER = bytes(range(32))


async def open_encrypted(url: str, prefix: str) -> Store:
    settings = {"url": url, "prefix": prefix, "encryption_key": MASTER.hex(), "timeout": "30s"}
    return await open_store(StorageSettings.model_validate(settings))


async def store_thread(store: Store, key: Key) -> None:
    await store.commit(Memory(key=key), MemoryBuilder(key).chat(5).memory())


async def obey(store: Store, command: str, thread: str) -> None:
    key = KEY._replace(thread=thread)
    if command == "store":
        await store_thread(store, key)
    elif command == "share":
        await share_log(store)
    elif command == "read":
        assert (await store.load(key)).version
        await store.messages(key, 0)
    elif command == "forget":
        await store.forget(key)
    else:
        raise ValueError(command)


async def main(url: str, prefix: str) -> None:
    configure_log("off")  # an erasure that ends later is logged at any time
    store = await open_encrypted(url, prefix)
    print("open", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, _, thread = line.strip().partition(" ")
        await obey(store, command, thread)
        gc.collect()
        print("done", flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
