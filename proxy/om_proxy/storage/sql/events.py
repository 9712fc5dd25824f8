"""Read pages of events, and keep how far webhooks have sent them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from om_proxy.memory.model import Key
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.shared.event_encoding import SealedEvent, open_event
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.session import Session, SqlStore, select_sealed_rows
from om_proxy.storage.values.records import StoredEvent, WebhookState

SELECT_WEBHOOK = "SELECT cursor, failures, cause, at FROM om.webhook WHERE name = $1"
# A list is made first. As a join, PostgreSQL would read the JSON again for each event: it does not know
# how short it is.
OF_NAMED = """thread_id = ANY (ARRAY (
    SELECT thread.id FROM json_array_elements({}::json) AS named CROSS JOIN om.thread
    WHERE tenant = (named.value ->> 0) AND resource = (named.value ->> 1)
        AND thread = (named.value ->> 2)
))"""


class EventMethods(SqlStore):
    """The webhooks of an SQL store."""

    # SQL for the newest id that any event had
    _newest_event: ClassVar[str]

    async def webhook_state(self, name: str) -> WebhookState | None:
        found = await self._select(SELECT_WEBHOOK, name)
        return WebhookState(*found[0]) if found else None

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        sql = f"""INSERT INTO om.webhook VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO UPDATE
            SET (cursor, failures, cause, at)
                = (excluded.cursor, excluded.failures, excluded.cause, excluded.at)
            WHERE excluded.cursor >= webhook.cursor OR webhook.cursor > ({self._newest_event})"""
        await self._write_one(sql, name, *state)


async def select_page(
    session: Session,
    tenant: str | None,
    keys: Sequence[Key] | None,
    bounds: tuple[int, int],
    limit: int,
    keyring: Keyring,
) -> tuple[StoredEvent, ...]:
    """Return events as `Store.events` does. `bounds`: the id before the first one, and the last."""
    conditions = ["event.id > $1", "event.id <= $2"]
    parameters: list[Any] = [*bounds, limit]
    if tenant is not None:
        parameters.append(tenant)
        conditions.append("event.tenant = $4")
    if keys is not None:
        parameters.append(json.dumps(keys))
        conditions.append(OF_NAMED.format(f"${len(parameters)}"))
    sql = f"""SELECT thread.key_id, event.id, event.tenant, coalesce(resource, ''), coalesce(thread, ''),
            at, type, data, sealed
        FROM om.event LEFT JOIN om.thread ON thread.id = thread_id
        WHERE {" AND ".join(conditions)} ORDER BY event.id LIMIT $3"""
    found = await select_sealed_rows(session, sql, parameters, keyring)
    return tuple(_decode_event(row, cipher) for cipher, row in found)


def _decode_event(row: Row, cipher: RowCipher) -> StoredEvent:
    id_, tenant, resource, thread, *columns = row
    event = SealedEvent(*columns)
    key = Key(tenant, resource, thread)
    return StoredEvent(id_, key, event.at, event.type, open_event(event, cipher))
