"""A schema of its own for each test."""

from collections.abc import Iterator

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.contract import Opener
from tests.support.postgres_server import find_postgres_url, own_schema


@pytest.fixture
def url() -> str:
    return find_postgres_url()


@pytest.fixture
def schema(url: str) -> Iterator[str]:
    with own_schema(url) as name:
        yield name


@pytest.fixture
def opener(url: str, schema: str) -> Opener:
    async def opened() -> Store:
        # patient: a machine that tests many things at once may take seconds for one statement
        options = PostgresOptions(prefix=schema, connections=5, timeout_s=30.0)
        return await PostgresStore.open(url, options)

    return opened
