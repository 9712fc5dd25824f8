"""A prefix of its own for each test."""

from collections.abc import Iterator

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from tests.storage.contract import Opener
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
    async def opened() -> Store:
        # patient: a machine that tests many things at once may take seconds for one script
        options = RedisOptions(prefix=prefix, connections=5, timeout_s=30.0)
        return await RedisStore.open(url, options)

    return opened
