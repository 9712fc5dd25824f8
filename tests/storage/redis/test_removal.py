"""Nothing of what was forgotten is left under any key of a Redis, nor in the name of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from om_proxy.memory.model import Key
from om_proxy.storage.values.records import ForgetScope
from tests.storage.canary_threads import CANARY_WORD, TENANT, fill, forget
from tests.storage.contract import Opener


def list_values(server: redis.Redis, name: bytes) -> list[bytes]:
    """Return the key's name and all that stands under it."""
    match server.type(name):
        case b"string":
            found = [server.get(name)]
        case b"hash":
            found = [part for pair in server.hgetall(name).items() for part in pair]
        case b"set":
            found = list(server.smembers(name))
        case b"zset":
            found = server.zrange(name, 0, -1)
        case b"list":
            found = server.lrange(name, 0, -1)
        case unknown:
            pytest.fail(f"no test reads a {unknown!r}")
    return [name, *found]


def find_keys(url: str, prefix: str) -> set[bytes]:
    """Return the keys with a canary."""

    def read(server: redis.Redis) -> Iterator[bytes]:
        for name in server.scan_iter(f"{prefix}:*"):
            if any(CANARY_WORD.encode() in value for value in list_values(server, name)):
                yield name

    with redis.Redis.from_url(url) as server:
        return set(read(server))


@pytest.mark.parametrize("scope", ["thread", "resource", "tenant"])
async def test_nothing_of_what_was_forgotten_is_under_any_key(
    opener: Opener, url: str, prefix: str, scope: ForgetScope
) -> None:
    resource = "ours" if scope == "thread" else f"{CANARY_WORD} resource"
    key = Key(TENANT, resource, f"{CANARY_WORD} thread")
    store = await opener()
    await fill(store, key, key._replace(thread="stays"))
    assert len(find_keys(url, prefix)) >= 5
    await forget(store, scope, key)
    assert find_keys(url, prefix) == set()
    await store.close()
