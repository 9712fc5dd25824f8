"""Stores and key stores are opened as the settings name them."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from om_proxy.app.store_opening import open_store
from om_proxy.common.errors import ConfigError
from om_proxy.settings.config import StorageSettings
from tests.support.own_postgres import own_postgres
from tests.support.postgres_server import ask_server, find_postgres_url, own_schema


@pytest.mark.parametrize("is_hard", [False, True], ids=["symbolic", "hard"])
async def test_the_file_of_the_data_under_another_name_is_no_key_store(
    tmp_path: Path, is_hard: bool
) -> None:
    data, link = tmp_path / "om.db", tmp_path / "link.db"
    data.touch()
    settings = read_settings(f"sqlite:///{data}", f"sqlite:///{link}")
    if is_hard:
        link.hardlink_to(data)
    else:
        link.symlink_to(data)
    with pytest.raises(ConfigError, match=r"^storage\.keys_url: it is the file of storage\.url"):
        await open_store(settings)
    assert data.read_bytes() == b""


async def test_the_database_of_the_data_under_another_name_is_no_key_store() -> None:
    """Nothing is made in it."""
    url = find_postgres_url()
    with own_schema(url) as schema:
        settings = read_settings(url, url.replace("127.0.0.1", "localhost"), schema)
        with pytest.raises(ConfigError, match=r"^storage\.keys_url: it is the database of storage"):
            await open_store(settings)
        sql = "SELECT count(*) FROM pg_namespace WHERE starts_with(nspname, $1)"
        assert ask_server(url, lambda c: c.fetchval(sql, schema)) == 0


async def test_a_server_that_does_not_tell_is_used() -> None:
    """The log says that it does not."""
    with own_postgres() as server:
        server.start()
        for statement in (
            "CREATE ROLE plain LOGIN",
            "GRANT CREATE ON DATABASE postgres TO plain",
            "REVOKE EXECUTE ON FUNCTION pg_try_advisory_xact_lock(bigint) FROM PUBLIC",
        ):
            ask_server(server.url, lambda c, sql=statement: c.execute(sql))
        url = server.url.replace("postgres:geheim", "plain")
        with capture_logs() as lines:
            await (
                await open_store(read_settings(url, url.replace("127.0.0.1", "localhost")))
            ).close()
    [line] = [line for line in lines if line["event"] == "keys.not_compared"]
    assert line["said"].startswith("PostgreSQL says InsufficientPrivilegeError (42501)")


def read_settings(url: str, keys_url: str, prefix: str = "om") -> StorageSettings:
    section = {"url": url, "keys_url": keys_url, "encryption_key": "A" * 43, "prefix": prefix}
    return StorageSettings.model_validate(section | {"timeout": "30s"})
