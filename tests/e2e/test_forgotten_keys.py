"""After a thread of an encrypted store was forgotten, the memory of the process that served it holds no
copy of its data key: neither its caches nor what its allocators have to give out again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from om_proxy.memory.model import RESOURCE_THREAD
from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.encryption.row_cipher import WrappedKey
from tests.storage.memory_builder import KEY
from tests.support.key_holder import MASTER, open_encrypted, store_thread
from tests.support.postgres_server import find_postgres_url, own_schema
from tests.support.process_memory import count_copies
from tests.support.redis_server import find_redis_url, own_prefix

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/PID/mem")


class KeyHolder:
    """The process of `tests.support.key_holder`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.key_holder", url, prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._expect("open")

    def tell(self, command: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._expect("done")

    def _expect(self, answer: str) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline().strip() == answer

    def count_copies(self, secrets: Sequence[bytes]) -> list[int]:
        return count_copies(self._process.pid, secrets)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def own_place(backend: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the URL and the prefix of a store that is empty."""
    if backend == "sqlite":
        yield f"sqlite:///{folder}/om.db", "om"
    elif backend == "postgres":
        with own_schema(url := find_postgres_url()) as prefix:
            yield url, prefix
    else:
        with own_prefix(url := find_redis_url()) as prefix:
            yield url, prefix


@asynccontextmanager
async def run_key_holder(place: tuple[str, str]) -> AsyncIterator[KeyHolder]:
    holder = KeyHolder(*place)
    try:
        yield holder
    finally:
        holder.close()


@asynccontextmanager
async def open_at(place: tuple[str, str]) -> AsyncIterator[Store]:
    store = await open_encrypted(*place)
    try:
        yield store
    finally:
        await store.close()


async def read_data_keys(store: Store, threads: Sequence[str]) -> list[bytes]:
    """Return the data keys of threads, as any process with the master key finds them."""
    found: list[WrappedKey] = []
    ring: Any = store._keys  # type: ignore[attr-defined] # each backend has one
    select = ring._select_wrapped
    ring.close()  # nothing is held, so everything is read

    async def note_selected(connection: Any, ids: Sequence[bytes]) -> Sequence[WrappedKey]:
        found.extend(stored := await select(connection, ids))
        return stored  # type: ignore[no-any-return] # what the backend returns

    ring._select_wrapped = note_selected
    for thread in threads:
        assert (await store.load(KEY._replace(thread=thread))).version
    masters = MasterKeys([MASTER])
    return [bytes(masters._unwrap_secret(key)) for key in found]


@pytest.mark.parametrize("backend", ["sqlite", "postgres", "redis"])
async def test_no_copy_of_a_forgotten_key_is_in_the_process(tmp_path: Path, backend: str) -> None:
    """After one more piece of work: the calls of the last one leave copies on the stack."""
    with own_place(backend, tmp_path) as place:
        async with open_at(place) as store, run_key_holder(place) as holder:
            await store_thread(store, KEY._replace(thread="older"))
            holder.tell("store made")  # its key is made in the process
            holder.tell("read older")  # its key is unwrapped there
            holder.tell("share")  # a log that gets another key
            keys = await read_data_keys(store, ("made", "older", RESOURCE_THREAD))
            assert len(keys) == len(set(keys)) >= 3
            assert 0 not in holder.count_copies(keys)  # they would be found
            for thread in ("made", "older", "A"):
                holder.tell(f"forget {thread}")
            holder.tell("store next")
            assert holder.count_copies(keys) == [0] * len(keys)
