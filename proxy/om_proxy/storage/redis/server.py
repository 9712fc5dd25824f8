"""Look at a Redis server: whether memories may be kept there, what it promises, and which programs may
use its database.

A script that the server stops in the middle, for want of a right, is not rolled back: half of a
turn would be stored. So a connection whose user lacks one is refused before anything is written.
"""

from __future__ import annotations

from typing import NamedTuple

import structlog
from redis.exceptions import NoPermissionError, ResponseError

from om_proxy.common.errors import StorageError
from om_proxy.storage.contract.status import Durability
from om_proxy.storage.promises import REDIS_SCHEMA_VERSION
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared.migrate import SchemaRow, refuse_foreign

logger = structlog.get_logger("storage")

OLDEST_SERVER = (6, 2)


NEEDED_RIGHTS = (
    "+@string +@hash +@set +@sortedset +@keyspace +@connection +@scripting -@dangerous "
    "+select +client|setname +time +info +bgrewriteaof +config|get"
)


class ServerState(NamedTuple):
    """The state that a server reported when a connection was opened."""

    version: tuple[int, int]
    is_cluster: bool
    is_replica: bool
    eviction: str  # `maxmemory-policy`
    has_log: bool  # an append-only file
    # how often that is flushed to the disk: `always`, `everysec`, `no`; empty: it does not say
    flushes: str
    incarnation: str  # another one after a restart or a failover

    @property
    def durability(self) -> Durability:
        if not self.has_log:
            return "process"
        return {"always": "fsync", "no": "none"}.get(self.flushes, "second")  # type: ignore[return-value] # literals all


async def read_server_state(session: Session) -> ServerState:
    info = parse_info(await session.call("INFO"))
    return ServerState(
        version=_parse_version(info.get("redis_version", "0.0")),
        is_cluster=info.get("cluster_enabled") == "1" or info.get("redis_mode") == "cluster",
        is_replica=info.get("role") != "master",
        eviction=info.get("maxmemory_policy", "noeviction"),
        has_log=info.get("aof_enabled") == "1",
        flushes=await _read_flushes(session),
        incarnation=info.get("run_id", ""),
    )


def parse_info(reply: bytes) -> dict[str, str]:
    """Parse the lines `name:value` of `INFO`."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _parse_version(text: str) -> tuple[int, int]:
    major, minor, *_ = (*text.split("."), "0")
    return int(major), int(minor)


async def _read_flushes(session: Session) -> str:
    try:
        reply = await session.call("CONFIG", "GET", "appendfsync")
    except ResponseError:  # hosted servers keep it to themselves
        return ""
    return reply[1].decode() if reply else ""


def check_server(state: ServerState, must_be_durable: bool) -> None:
    """Raise StorageError if memories may not be kept on this server."""
    if state.version < OLDEST_SERVER:
        raise StorageError(
            f"the server is Redis {state.version[0]}.{state.version[1]}; om-proxy needs 6.2 or newer"
        )
    if state.is_cluster:
        raise StorageError(
            "the server is part of a Redis Cluster, which om-proxy cannot use; "
            "name a single Redis, or a primary with replicas"
        )
    if state.is_replica:
        raise StorageError("the server is a replica; name the primary")
    if state.eviction != "noeviction":
        raise StorageError(
            f"the server runs with maxmemory-policy {state.eviction}: it may drop memories when it "
            "is full; set maxmemory-policy noeviction"
        )
    if state.durability in ("process", "none"):
        _report_loss(state, must_be_durable)


def _report_loss(state: ServerState, must_be_durable: bool) -> None:
    setting = "appendonly no" if not state.has_log else "appendfsync no"
    loss = (
        "what was written since its last snapshot ends with it"
        if not state.has_log
        else "a power cut loses acknowledged turns"
    )
    if must_be_durable:
        better = "appendonly yes" if not state.has_log else "appendfsync everysec"
        raise StorageError(
            f"the server runs with {setting}: {loss}; set {better}, or set storage.durable: false"
        )
    logger.warning("storage.not_durable", setting=setting, loss=loss)


async def check_rights(session: Session) -> None:
    """Raise StorageError if the user may not run a command that the scripts use, or not on all keys
    of the store."""
    try:
        refused = await session.run("probe_rights")
    except NoPermissionError:
        refused = [b"EVALSHA", b"EVAL"]
    if refused:
        names = ", ".join(name.decode() for name in refused)
        raise StorageError(
            f"the user of storage.url may not run {names} on all keys that begin with "
            f"{session.keys.prefix}: ; give it ~{session.keys.prefix}:* {NEEDED_RIGHTS}"
        )


# ── the layout of its keys ──

# the oldest layout that this program can use, and the oldest program that may use what it writes
OLDEST_SCHEMA = 3


async def prepare_schema(session: Session, create: bool) -> None:
    """Mark the database as one of om-proxy. With `create=False`, raise StorageError if it is none,
    and change nothing."""
    name = session.keys.of_store("schema")
    if not create and not await session.call("EXISTS", name):
        raise StorageError(f"the database holds no memories under {session.keys.prefix}:")
    await check_schema(session)
    if create:
        fields = dict.fromkeys(("min_reader", "min_writer"), OLDEST_SCHEMA)
        fields["version"] = REDIS_SCHEMA_VERSION
        await session.call_many([("HSETNX", name, *field) for field in fields.items()])
        if (await read_schema_row(session)).version < REDIS_SCHEMA_VERSION:
            await session.call("HSET", name, "version", REDIS_SCHEMA_VERSION)


async def read_schema_row(session: Session) -> SchemaRow:
    name = session.keys.of_store("schema")
    found = await session.call("HMGET", name, "version", "min_reader", "min_writer")
    stored = [REDIS_SCHEMA_VERSION if value is None else int(value) for value in found]
    return SchemaRow(*stored)


async def check_schema(session: Session) -> None:
    """Raise `ProgramTooOld` if the database excludes this program, and StorageError if its layout is
    an older one."""
    row = await read_schema_row(session)
    row.check_program(REDIS_SCHEMA_VERSION)
    if row.version < OLDEST_SCHEMA:
        raise refuse_foreign(f"layout {row.version} of its keys")
