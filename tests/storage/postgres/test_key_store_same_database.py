"""Whether two addresses name one database is told by the database itself."""

from __future__ import annotations

import asyncpg
import pytest

from om_proxy.common.errors import StorageError
from om_proxy.storage.postgres.key_store import are_one_database
from tests.support.own_postgres import own_postgres
from tests.support.postgres_server import find_pooler_url


async def test_one_database_has_many_names(url: str) -> None:
    """Of its host, or of a pooler before it."""
    pooler = find_pooler_url()
    for other in (url, url.replace("127.0.0.1", "localhost"), pooler):
        assert await are_one_database(url, other) is True
        assert await are_one_database(other, url) is True
    assert await are_one_database(pooler, pooler) is True


async def test_another_database_of_the_server_is_another(url: str) -> None:
    assert await are_one_database(url, url.removesuffix("postgres") + "template1") is False


async def test_a_server_that_is_away_is_not_asked(url: str) -> None:
    for asked in ((url, "postgresql://om@127.0.0.1:1/om"), ("postgresql://om@127.0.0.1:1/om", url)):
        assert await are_one_database(*asked) is None


async def test_a_server_may_refuse_the_question() -> None:
    """It needs no rights, unless they were taken away."""
    with own_postgres() as server:
        server.start()
        admin = await asyncpg.connect(server.url)
        await admin.execute("CREATE ROLE plain LOGIN")
        plain = server.url.replace("postgres:geheim", "plain")
        assert await are_one_database(plain, plain) is True
        await admin.execute(
            "REVOKE EXECUTE ON FUNCTION pg_try_advisory_xact_lock(bigint) FROM PUBLIC"
        )
        await admin.close()
        with pytest.raises(StorageError, match="InsufficientPrivilegeError"):
            await are_one_database(plain, plain)
