"""A Redis whose keys are elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import redis

from om_proxy.storage.encryption.key_store import KeyStore
from om_proxy.storage.encryption.row_cipher import KEY_ID_BYTES
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.storage.sqlite.key_store import SqliteKeyStore
from tests.storage.memory_builder import KEY
from tests.storage.separate_keys_contract import SeparateKeysContract, SeparatePlace, say


class RedisPlace(SeparatePlace):
    """A prefix of a Redis, and a file with its keys."""

    def __init__(self, server: redis.Redis, prefix: str, url: str, folder: Path) -> None:
        self._server = server
        self._prefix = prefix

        async def open_keys() -> KeyStore:
            return SqliteKeyStore(folder / "keys.db")

        options = RedisOptions(prefix=prefix, connections=3, timeout_s=30.0)
        super().__init__(partial(RedisStore.open, url, options), open_keys, self._copy)

    async def _copy(self) -> Callable[[], Awaitable[None]]:
        """Copy all keys, as a snapshot of the server does."""
        server = self._server
        values = {name: server.dump(name) for name in server.scan_iter(f"{self._prefix}:*")}

        async def restore() -> None:
            for name in [*server.scan_iter(f"{self._prefix}:*")]:
                server.delete(name)
            for name, value in values.items():
                server.restore(name, 0, value)

        return restore

    async def list_named(self) -> set[bytes]:
        """Return the keys that rows name. The list of them says the same."""
        rows = [*self._server.scan_iter(f"{self._prefix}:{{*}}:row:*")]
        joined = b"".join(self._server.hget(name, "keys") or b"" for name in rows)
        starts = range(0, len(joined), KEY_ID_BYTES)
        named = {joined[start : start + KEY_ID_BYTES] for start in starts}
        assert named == {*self._server.hkeys(f"{self._prefix}:named_keys")}
        return named

    async def count_beside(self) -> int:
        counts = self._server.hvals(f"{self._prefix}:key_counts")
        beside = self._server.hlen(f"{self._prefix}:data_keys")
        assert sum(map(int, counts)) == beside
        return int(beside)


@pytest.fixture
async def place(url: str, prefix: str, tmp_path: Path) -> AsyncIterator[SeparatePlace]:
    with redis.Redis.from_url(url) as server:
        opened = RedisPlace(server, prefix, url, tmp_path)
        yield opened
        await opened.close()


class TestRedisSeparateKeys(SeparateKeysContract):
    """The contract under a prefix, with its keys in a file."""


async def test_receipts_say_that_nobody_can_decrypt_what_the_log_holds(
    place: SeparatePlace,
) -> None:
    """At once, and not only once it is rewritten."""
    store = await place.open()
    await say(store, KEY)
    result = await store.forget(KEY)
    assert (result.database, result.log) == ("gone", "keys_destroyed")
    assert result.backups == "keys_destroyed"
