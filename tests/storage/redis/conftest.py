"""A prefix of its own for each test."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from tests.storage.contract import Opener
from tests.storage.key_rotation_contract import OpenWith
from tests.support.redis_server import find_redis_url, own_prefix


@pytest.fixture
def url() -> str:
    return find_redis_url()


@pytest.fixture
def prefix(url: str) -> Iterator[str]:
    with own_prefix(url) as name:
        yield name


@pytest.fixture
def opener(url: str, prefix: str) -> Opener:
    async def open_store() -> Store:
        # patient: a machine that tests many things at once may take seconds for one script
        options = RedisOptions(prefix=prefix, connections=5, timeout_s=30.0)
        return await RedisStore.open(url, options)

    return open_store


@pytest.fixture
async def open_with(url: str, prefix: str) -> AsyncIterator[OpenWith]:
    async with AsyncExitStack() as stack:

        async def open_store(*keys: bytes) -> RedisStore:
            store = await RedisStore.open(
                url,
                RedisOptions(prefix=prefix, connections=3, timeout_s=30.0),
                masters=MasterKeys(keys) if keys else None,
            )
            stack.push_async_callback(store.close)
            return store

        yield open_store
