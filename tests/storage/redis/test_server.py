"""Which servers are refused, and what each promises."""

from __future__ import annotations

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.storage.redis.server import ServerState, check_server, parse_info
from om_proxy.storage.values.store_description import Durability

GOOD = ServerState((7, 0), False, False, "noeviction", True, "everysec", "a run")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": (6, 0)}, r"is Redis 6\.0; om-proxy needs 6\.2 or newer"),
        ({"is_cluster": True}, "part of a Redis Cluster, which om-proxy cannot use"),
        ({"is_replica": True}, "is a replica; name the primary"),
        ({"eviction": "allkeys-lru"}, "maxmemory-policy allkeys-lru.*set maxmemory-policy noev"),
        ({"eviction": "volatile-ttl"}, "maxmemory-policy volatile-ttl"),
    ],
)
def test_a_server_that_may_not_keep_memories(change: dict[str, object], said: str) -> None:
    with pytest.raises(StorageError, match=said):
        check_server(GOOD._replace(**change), must_be_durable=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"has_log": False}, "appendonly no: .*set appendonly yes, or set storage.durable: false"),
        ({"flushes": "no"}, "appendfsync no: .*set appendfsync everysec, or set storage.durable"),
    ],
)
def test_a_server_that_loses_more_than_a_second(change: dict[str, object], said: str) -> None:
    """It is refused, unless the operator takes that."""
    state = GOOD._replace(**change)
    with pytest.raises(StorageError, match=said):
        check_server(state, must_be_durable=True)
    check_server(state, must_be_durable=False)


@pytest.mark.parametrize(
    ("has_log", "flushes", "durable"),
    [
        (True, "always", "fsync"),
        (True, "everysec", "second"),
        (True, "", "second"),  # a hosted server that does not say
        (True, "no", "none"),
        (False, "always", "process"),
    ],
)
def test_what_a_server_promises(has_log: bool, flushes: str, durable: Durability) -> None:
    assert GOOD._replace(has_log=has_log, flushes=flushes).durability == durable


def test_info_is_lines_of_names_and_values() -> None:
    reply = b"# Server\r\nredis_version:7.0.15\r\nos:a:b\r\n\r\nodd\r\n"
    assert parse_info(reply) == {"redis_version": "7.0.15", "os": "a:b"}
