"""List the resources of a tenant, each with the number of its threads and its shared log."""

from __future__ import annotations

from typing import Any

from om_proxy.memory.model import RESOURCE_THREAD
from om_proxy.storage.encryption.row_cipher import HeldKeys
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sql.sql_store import SqlStore
from om_proxy.storage.sql.thread_infos import IS_NO_SHARED_LOG
from om_proxy.storage.values.listing import MAX_COUNTED_THREADS, ResourceInfo

# One step from each resource to the next: the threads of none are read.
_LISTED = """WITH RECURSIVE listed (resource, number) AS (
    SELECT min(resource), 1 FROM om.thread WHERE tenant = $1 AND resource > $2
    UNION ALL SELECT (SELECT min(thread.resource) FROM om.thread
        WHERE tenant = $1 AND thread.resource > listed.resource), number + 1
    FROM listed WHERE listed.resource IS NOT NULL AND number < $3)"""
_COUNT_THREADS = f"""(SELECT count(*) FROM (SELECT 1 FROM om.thread AS counted
    WHERE counted.tenant = $1 AND counted.resource = listed.resource AND counted.{IS_NO_SHARED_LOG}
    LIMIT {MAX_COUNTED_THREADS + 1}) AS counted)"""


class ResourceMethods(SqlStore):
    """The lists of resources of an SQL store."""

    async def resources(
        self, tenant: str, after: str | None = None, limit: int = 100
    ) -> tuple[ResourceInfo, ...]:
        if not limit:
            return ()
        return await self._describe_resources(_LISTED, tenant, after or "", limit)

    async def resource(self, tenant: str, resource: str) -> ResourceInfo | None:
        listed = "WITH listed (resource) AS (VALUES ($2::text))"
        [found] = await self._describe_resources(listed, tenant, resource)
        return found if found.threads or found.shared_log else None

    async def _describe_resources(
        self, listed: str, tenant: str, *parameters: Any
    ) -> tuple[ResourceInfo, ...]:
        sql = f"""{listed} SELECT listed.resource, {_COUNT_THREADS}, {self._info_columns} FROM listed
            LEFT JOIN om.thread ON thread.tenant = $1 AND thread.resource = listed.resource
                AND thread.thread = '{RESOURCE_THREAD}'
            WHERE listed.resource IS NOT NULL ORDER BY listed.resource"""

        async def select(session: Session) -> tuple[ResourceInfo, ...]:
            found = await session.select(sql, tenant, *parameters)
            held = await self._keys.hold(session, {row[-1] for row in found})
            return tuple(_decode_resource(tenant, row, held) for row in found)

        return await self._read_one(select)


def _decode_resource(tenant: str, row: Row, held: HeldKeys) -> ResourceInfo:
    resource, threads, *info = row
    return ResourceInfo(
        tenant,
        resource,
        min(threads, MAX_COUNTED_THREADS),
        threads > MAX_COUNTED_THREADS,
        row_decoding.decode_info(tuple(info), held) if info[0] is not None else None,
    )
