"""Read what a Redis reports about its data keys: which are beside the data, and which are to be
destroyed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from om_proxy.storage.encryption.key_store import RewrappedBatch
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.redis.encryption import read_state
from om_proxy.storage.redis.rows import decode_wrapped_key, encode_wrapped_key
from om_proxy.storage.redis.session import Argument, Session
from om_proxy.storage.shared.limited_work import LONG_TIMEOUT_S

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.redis.pool import ConnectionPool

KEYS_PER_PAGE = 1_000


class ServerKeyRows:
    """The `KeyRows` of a Redis."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def list_doomed_keys(self) -> list[bytes]:
        return await self._pool.read(
            lambda s: s.call("ZRANGE", s.keys.of_store("doomed_keys"), 0, KEYS_PER_PAGE - 1)
        )

    async def clear_doomed(self, ids: Sequence[bytes]) -> None:
        await self._pool.write(lambda s: s.call("ZREM", s.keys.of_store("doomed_keys"), *ids))

    async def select_named(self, ids: Sequence[bytes]) -> list[bytes]:
        found = await self._pool.read(
            lambda s: s.call("HMGET", s.keys.of_store("named_keys"), *ids), LONG_TIMEOUT_S
        )
        return [id_ for id_, named in zip(ids, found, strict=True) if named is not None]

    async def select_beside(self) -> list[WrappedKey]:
        async def find_some(session: Session) -> list[WrappedKey]:
            page = KeyPage([], b"0")
            while page.next_cursor is not None and not page.keys:
                page = await scan_keys(session, page.next_cursor)
            return page.keys

        return await self._pool.read(find_some, LONG_TIMEOUT_S)

    async def clear_beside(self, ids: Sequence[bytes]) -> None:
        async def clear(session: Session) -> None:
            found = await session.call("HMGET", session.keys.of_store("data_keys"), *ids)
            pairs = zip(ids, found, strict=True)
            stored = [(id_, before, b"") for id_, before in pairs if before is not None]
            await replace_keys(session, stored)

        await self._pool.write(clear, LONG_TIMEOUT_S)

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._pool.write(lambda s: rewrap_keys(s, after, masters), LONG_TIMEOUT_S)

    async def finish_beside(self, masters: MasterKeys) -> bool:
        return await self._pool.write(lambda s: finish_rotation(s, masters), LONG_TIMEOUT_S)


class KeyPage(NamedTuple):
    """Some of the keys beside the data."""

    keys: list[WrappedKey]
    next_cursor: bytes | None  # None: there are no more


async def scan_keys(session: Session, cursor: bytes) -> KeyPage:
    """Return some of the keys beside the data. What stays there meanwhile is in one of the pages."""
    name = session.keys.of_store("data_keys")
    following, found = await session.call("HSCAN", name, cursor, "COUNT", KEYS_PER_PAGE)
    pairs = zip(found[::2], found[1::2], strict=True)
    keys = [decode_wrapped_key(id_, stored) for id_, stored in pairs]
    return KeyPage(keys, None if following == b"0" else following)


async def replace_keys(session: Session, keys: Sequence[tuple[bytes, bytes, bytes]]) -> int:
    """Replace keys as they are stored: id, the value that is there, the new one (empty: none).
    Return how many were still the same."""
    parts: list[Argument] = [part for key in keys for part in key]
    return int(await session.run("replace_keys", len(keys), *parts)) if keys else 0


async def rewrap_keys(session: Session, after: bytes, masters: MasterKeys) -> RewrappedBatch:
    """Return `KeyRows.rewrap_beside`. `after`: where the server's walk along its keys goes on."""
    page = await scan_keys(session, after or b"0")
    older = [key for key in page.keys if key.master != masters.newest_id]
    rewrapped = [
        (key.id, encode_wrapped_key(key), encode_wrapped_key(masters.rewrap(key))) for key in older
    ]
    # one that was destroyed in between stays so
    return RewrappedBatch(await replace_keys(session, rewrapped), page.next_cursor)


async def finish_rotation(session: Session, masters: MasterKeys) -> bool:
    """Return `KeyRows.finish_beside`."""
    while True:
        stored = (await read_state(session)).secret or b""
        sealed = masters.seal_secret(masters.open_secret(stored)) if stored else b""
        said = await session.run("finish_rekeying", masters.newest_id, stored, sealed)
        if said != b"changed":
            return bool(said == b"done")
