"""Which servers are refused, and what each promises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import StorageError
from om_proxy.memory.model import Memory
from om_proxy.storage.contract.status import Durability
from om_proxy.storage.redis.server import NEEDED_RIGHTS, ServerState, check_server, parse_info
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder

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


REDIS = files("om_proxy.storage.redis")
# outside of scripts, and not on keys
CONNECTION_COMMANDS = {"EVAL", "EVALSHA", "PING", "INFO", "CONFIG", "BGREWRITEAOF"}

LogIn = Callable[[str], str]


@pytest.fixture
def log_in(url: str, prefix: str) -> Iterator[LogIn]:
    """Give a user of the test's own these rights, end its connections, and return the address with it."""
    import redis

    with redis.Redis.from_url(url) as client:

        def set_rights(rights: str) -> str:
            client.execute_command(
                *("ACL", "SETUSER", prefix, "reset", "on", ">x"), *rights.split()
            )
            client.execute_command("CLIENT", "KILL", "USER", prefix)
            return url.replace("redis://", f"redis://{prefix}:x@")

        yield set_rights
        client.execute_command("ACL", "DELUSER", prefix)


def list_keys(url: str, prefix: str) -> set[str]:
    import redis

    with redis.Redis.from_url(url) as client:
        return {name.decode() for name in client.scan_iter(f"{prefix}:*")}


async def test_the_rights_that_the_guide_names_are_enough(
    log_in: LogIn, url: str, prefix: str
) -> None:
    address = log_in(f"~{prefix}:* {NEEDED_RIGHTS}")
    store = await RedisStore.open(address, RedisOptions(prefix, timeout_s=30.0))
    memory = await store.commit(
        Memory(key=KEY), MemoryBuilder().chat(4).memory(), (), [activation("now")]
    )
    await store.lease(KEY, "me", 9.0)
    await store.commit(memory, replace(memory, turns=7))
    await store.move_tenant(KEY.tenant, "new", lambda *_: None)
    assert (await store.forget(KEY._replace(tenant="new"))).messages == 4
    await store.wait_erased()
    await store.close()
    assert f"{prefix}:rights" not in list_keys(url, prefix)


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ("-del", "may not run DEL on all keys"),
        ("-rename -exists", "may not run EXISTS, RENAME on all keys"),
        ("-@scripting", "may not run EVALSHA, EVAL on"),
        ("resetkeys ~other:*", "may not run DEL on all keys that begin with"),
        ("-ping", "Redis says NoPermissionError"),
    ],
)
async def test_a_user_that_lacks_a_right(
    log_in: LogIn, url: str, prefix: str, rights: str, said: str
) -> None:
    address = log_in(f"~{prefix}:* {NEEDED_RIGHTS} {rights}")
    with pytest.raises(StorageError, match=said):
        await RedisStore.open(address, RedisOptions(prefix, timeout_s=30.0))
    assert list_keys(url, prefix) == set()


async def test_a_right_that_is_taken_away_is_missed_by_the_next_connection(
    log_in: LogIn, prefix: str
) -> None:
    address = log_in(f"~{prefix}:* {NEEDED_RIGHTS}")
    store = await RedisStore.open(address, RedisOptions(prefix, timeout_s=30.0))
    log_in(f"~{prefix}:* {NEEDED_RIGHTS} -rename")
    with pytest.raises(StorageError, match="may not run RENAME"):
        await store.load(KEY)
    await store.close()


def test_every_command_is_probed() -> None:
    """What the scripts and the modules call stands in the probe."""
    lua = {f.name: f.read_text("utf-8") for f in (REDIS / "lua").iterdir()}
    probe = lua.pop("probe_rights.lua")
    probed = set(re.findall(r"\{'([A-Z]+)'(?:, (?:key|other)|\})", probe))
    called = {
        name for text in lua.values() for name in re.findall(r"(?:call\(|\{)'([A-Z]+)'", text)
    }
    for module in REDIS.iterdir():
        if module.name.endswith(".py"):
            called |= set(re.findall(r"""\(\s*\(*"([A-Z]{3,})",""", module.read_text("utf-8")))
    assert called - CONNECTION_COMMANDS - {"LIMIT"} == probed
