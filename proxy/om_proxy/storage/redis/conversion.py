"""Encrypt the memories of a Redis that are not encrypted yet, each by one script, and wrap its data
keys under another master key."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from om_proxy.memory.model import Key
from om_proxy.storage.encoding import decode_state, decode_text, write_state
from om_proxy.storage.encryption.conversion import EncryptedBatch, RewrappedBatch
from om_proxy.storage.encryption.keyring import CommitKeys, Keyring
from om_proxy.storage.encryption.row_cipher import PLAIN, ThreadCiphers
from om_proxy.storage.limited_work import LONG_TIMEOUT_S, MOVE_TIMEOUT_S
from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.encryption import read_state, replace_keys, scan_keys
from om_proxy.storage.redis.listing import read_page
from om_proxy.storage.redis.log_rewriting import LogRewriter
from om_proxy.storage.redis.pool import ConnectionPool
from om_proxy.storage.redis.queries import select_thread_rows
from om_proxy.storage.redis.removal import ask_for_erasure
from om_proxy.storage.redis.resealing import add_resealed_rows
from om_proxy.storage.redis.resource_state import read_resource, try_until_applied
from om_proxy.storage.redis.rows import ThreadRow, encode_others, encode_wrapped_key
from om_proxy.storage.redis.session import Session

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

# one script writes a memory, so few of them are read ahead
ROWS_PER_BATCH = 100
# of a log that the server may have rewritten a moment ago, or refuses to rewrite
REWRITE_TIMEOUT_S = 300.0


class ServerConversion:
    """The `BackendConversion` of a Redis."""

    def __init__(self, pool: ConnectionPool, keys: Keyring, rewriter: LogRewriter) -> None:
        self._pool = pool
        self._keys = keys
        self._rewriter = rewriter

    async def encrypt_batch(self, after: int) -> EncryptedBatch:
        plain, batch = await self._pool.read(lambda s: select_batch(s, after), LONG_TIMEOUT_S)
        count = 0
        for key in plain:
            encrypt = partial(encrypt_memory, key=key, keys=self._keys)
            count += await self._pool.write(encrypt, MOVE_TIMEOUT_S)
        return batch._replace(memories=count)

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._pool.write(lambda s: rewrap_beside(s, after, masters), LONG_TIMEOUT_S)

    async def finish_beside(self, masters: MasterKeys) -> bool:
        return await self._pool.write(lambda s: finish_beside(s, masters), LONG_TIMEOUT_S)

    async def erase_replaced(self) -> bool:
        """Have the server rewrite its log. Return False if it has not done so in time."""
        server = self._pool.server
        if server is None or not server.has_log:
            return True
        try:
            async with asyncio.timeout(REWRITE_TIMEOUT_S):
                await self._rewriter.wait()
        except TimeoutError:
            return False
        return True


async def select_batch(session: Session, after: int) -> tuple[list[Key], EncryptedBatch]:
    """Return some memories with row ids above `after`: those that are not encrypted, and the batch
    as it is before they are."""
    page = await read_page(session, "id", None, after, "", ROWS_PER_BATCH)
    plain = [one.key for one in page if one.row.key_id is None]
    return plain, EncryptedBatch(0, page[-1].row_id if page else None)


async def encrypt_memory(session: Session, key: Key, keys: Keyring) -> bool:
    """Encrypt one memory. Return False if it is gone, or is encrypted."""

    async def attempt() -> bool | None:
        state = await read_resource(session, key.tenant, key.resource)
        stored = await select_thread_rows(session, [key])
        if key not in stored or stored[key][1].key_id is not None:
            return False
        _, row, due = stored[key]
        changes = Changes()
        # not its version: an event is written without one
        changes.expect_revision(key.tenant, key.resource, state.revision)
        ciphers = await _add_keys(changes, keys, has_others=bool(row.others))
        await add_resealed_rows(session, changes, key, PLAIN, ciphers.row)
        changes.write_row(key, _seal_row(row, ciphers), due)
        ask_for_erasure(session, changes)
        return True if (await changes.apply(session)).failed is None else None

    return await try_until_applied(attempt)


async def _add_keys(changes: Changes, keys: Keyring, *, has_others: bool) -> ThreadCiphers:
    new = [keys.create_key() for _ in range(2 if has_others else 1)]
    made = [key for key in new if key is not None]
    assert len(made) == len(new)  # nobody encrypts without a master key
    written = await keys.write_new(CommitKeys(new_keys=tuple(key.stored for key in made)))
    changes.add_keys(written.new_keys)
    return ThreadCiphers(*(key.key for key in made))


def _seal_row(row: ThreadRow, ciphers: ThreadCiphers) -> ThreadRow:
    """Return the row of a memory that was not encrypted."""
    title = None if row.title is None else ciphers.row.seal(b"thread", 0, b"title", row.title)
    return replace(
        row,
        title=title,
        others=encode_others(decode_text(row.others), ciphers),
        state=write_state(decode_state(row.state, PLAIN), ciphers.row),
        key_id=ciphers.row.key_id,
    )


async def rewrap_beside(session: Session, after: bytes, masters: MasterKeys) -> RewrappedBatch:
    """Return `BackendConversion.rewrap_beside`. `after`: where the server's walk along its keys goes
    on."""
    page = await scan_keys(session, after or b"0")
    older = [key for key in page.keys if key.master != masters.newest_id]
    rewrapped = [
        (key.id, encode_wrapped_key(key), encode_wrapped_key(masters.rewrap(key))) for key in older
    ]
    # one that was destroyed in between stays so
    return RewrappedBatch(await replace_keys(session, rewrapped), page.next_cursor)


async def finish_beside(session: Session, masters: MasterKeys) -> bool:
    """Return `BackendConversion.finish_beside`."""
    while True:
        stored = (await read_state(session)).secret or b""
        sealed = masters.seal_secret(masters.open_secret(stored)) if stored else b""
        said = await session.run("finish_rekeying", masters.newest_id, stored, sealed)
        if said != b"changed":
            return bool(said == b"done")
