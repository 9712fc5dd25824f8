"""Move a tenant's threads, their shared logs, and all that is keyed by tenant."""

from __future__ import annotations

from abc import abstractmethod

from om_proxy.common.errors import StorageError
from om_proxy.storage.encoding import decode_state, encode_parts, open_others, replace_views
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher, list_key_ids
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.event_encoding import SealedEvent, reseal_event
from om_proxy.storage.shared.rekeying import (
    SAME_NAME_CAME,
    Fingerprint,
    MessageIdentity,
    MovingResource,
    ResourceRekeying,
    ThreadRekeying,
)
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.ledger import move_resource
from om_proxy.storage.sql.record_keeping import move_labelled_records, move_other_records
from om_proxy.storage.sql.session import Session, SqlStore, Work
from om_proxy.storage.values.changes import MoveResult
from om_proxy.storage.values.records import NAMELESS_RESOURCE

SELECT_RESOURCES = "SELECT DISTINCT resource FROM om.thread WHERE tenant = $1 ORDER BY resource"
COUNT_NAME_CONFLICTS = """SELECT count(*) FROM om.thread WHERE tenant = $1 AND EXISTS (
    SELECT 1 FROM om.thread AS theirs WHERE theirs.tenant = $2
    AND (theirs.resource, theirs.thread) = (thread.resource, thread.thread))"""
SELECT_THREADS = """SELECT id, thread, others, state, key_id FROM om.thread WHERE tenant = $1 AND resource = $2
    ORDER BY thread = '', thread FOR UPDATE"""
SELECT_MESSAGES = """SELECT seq, parent, live, fp, chain, raw, api FROM om.message
    WHERE thread_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"""
MESSAGES_PER_PAGE = 1_000
# kept look-ups name threads by their old labels
UPDATE_MESSAGE = """UPDATE om.message SET (fp, chain, look_ups) = ($3, $4, NULL)
    WHERE thread_id = $1 AND seq = $2"""
SELECT_OBSERVATIONS = (
    f"SELECT {row_decoding.OBSERVATION_COLUMNS} FROM om.observation WHERE thread_id = $1"
)
UPDATE_OBSERVATION = """UPDATE om.observation SET (chain, text, task, suggestion, parts) = ($3, $4, $5, $6, $7)
    WHERE thread_id = $1 AND id = $2"""
SELECT_REFLECTION = (
    f"SELECT {row_decoding.REFLECTION_COLUMNS} FROM om.reflection WHERE thread_id = $1"
)
UPDATE_REFLECTION = (
    "UPDATE om.reflection SET (text, task, suggestion) = ($2, $3, $4) WHERE thread_id = $1"
)
UPDATE_THREAD = "UPDATE om.thread SET (tenant, others, state) = ($2, $3, $4) WHERE id = $1"
SELECT_EVENTS = "SELECT id, at, type, data, sealed FROM om.event WHERE thread_id = $1"
UPDATE_EVENT = "UPDATE om.event SET (tenant, data, sealed) = ($2, $3, $4) WHERE id = $1"
# those of forgotten threads
MOVE_EVENTS = "UPDATE om.event SET tenant = $2 WHERE tenant = $1 AND thread_id IS NULL"
DELETE_LEASES = "DELETE FROM om.lease WHERE tenant = $1 AND resource = $2"


class TenantMoveMethods(SqlStore):
    """`Store.move_tenant` of an SQL store."""

    @abstractmethod
    async def _move(self, work: Work[MoveResult]) -> MoveResult:
        """Run work in a transaction that may take minutes, and needs keys."""

    async def move_tenant(self, old: str, new: str, fingerprint: Fingerprint) -> MoveResult:
        label_of = await self._secret.create_labeler()
        [(name_conflicts,)] = await self._select(COUNT_NAME_CONFLICTS, old, new)
        if name_conflicts:
            return MoveResult(name_conflicts=name_conflicts)
        threads = messages = 0
        for (resource,) in await self._select(SELECT_RESOURCES, old):
            moving = MovingResource(old, new, resource, fingerprint, label_of)
            moved = await self._move(ResourceMove(moving, self._keys))
            threads += moved.threads
            messages += moved.messages
        await self._write(lambda s: move_resource(s, old, new, NAMELESS_RESOURCE), is_long=True)
        await self._write(lambda s: move_other_records(s, old, new), is_long=True)
        return MoveResult(threads, messages)


class ResourceMove:
    """The move of one resource, as work in a transaction. The result counts what moved."""

    def __init__(self, resource: MovingResource, keyring: Keyring) -> None:
        self._resource = resource
        self._keyring = keyring

    async def __call__(self, session: Session) -> MoveResult:
        old, new, resource = self._resource.old, self._resource.new, self._resource.name
        threads = await session.select(SELECT_THREADS, old, resource)
        [(name_conflicts,)] = await session.select(
            f"{COUNT_NAME_CONFLICTS} AND resource = $3", old, new, resource
        )
        if name_conflicts:
            raise StorageError(SAME_NAME_CAME)
        names = [row[1] for row in threads]
        rekeying = self._resource.rekey(names)
        message_count = 0
        for row in threads:  # the shared log comes last
            message_count += await self._move_thread(session, rekeying, row)
        await session.execute(MOVE_EVENTS, old, new)
        await session.execute(DELETE_LEASES, old, resource)
        await move_resource(session, old, new, resource)
        await move_labelled_records(session, old, new, self._resource.map_labels(names))
        return self._resource.count_moved(names, message_count)

    async def _move_thread(self, session: Session, rekeying: ResourceRekeying, row: Row) -> int:
        """Move one thread. Return the number of its messages."""
        id_, name, others, state_column, key_id = row
        held = await self._keyring.hold(session, list_key_ids([(key_id, others)]))
        ciphers = held.find_thread(key_id, others)
        cipher = ciphers.row
        messages = await self._select_messages(session, id_, cipher)
        thread = rekeying.rekey_thread(name, messages)
        await session.execute_many(
            UPDATE_MESSAGE, [(id_, *columns) for columns in thread.list_message_keys()]
        )
        await _move_notes(session, id_, thread, cipher)
        relabel = self._resource.create_event_relabeler(rekeying)
        for event_id, *columns in await session.select(SELECT_EVENTS, id_):
            event = reseal_event(SealedEvent(*columns), cipher, cipher, relabel)
            await session.execute(
                UPDATE_EVENT, event_id, self._resource.new, event.data, event.sealed
            )
        state = decode_state(state_column, cipher)
        new_state = replace_views(state, thread.rekey_views(state.views), cipher)
        relabelled = rekeying.relabel(open_others(ciphers, others))
        new_others = session.encoder.encode_others(relabelled, ciphers)
        await session.execute(UPDATE_THREAD, id_, self._resource.new, new_others, new_state)
        await session.raise_versions([id_])
        return len(messages)

    async def _select_messages(
        self, session: Session, id_: int, cipher: RowCipher
    ) -> list[MessageIdentity]:
        """Return what the keys of all messages are made from; their texts only page by page."""
        messages: list[MessageIdentity] = []
        while True:
            last_seq = messages[-1].seq if messages else 0
            page = await session.select(SELECT_MESSAGES, id_, last_seq, MESSAGES_PER_PAGE)
            messages += [self._identify(row, cipher) for row in page]
            if len(page) < MESSAGES_PER_PAGE:
                return messages

    def _identify(self, row: Row, cipher: RowCipher) -> MessageIdentity:
        seq, parent, live, fp, chain, sealed, api = row
        raw = cipher.open(b"message", seq, b"raw", sealed)
        return self._resource.identify(seq, parent, live, fp, chain, raw, api)


async def _move_notes(
    session: Session, id_: int, thread: ThreadRekeying, cipher: RowCipher
) -> None:
    for row in await session.select(SELECT_OBSERVATIONS, id_):
        entry = thread.rekey_observation(row_decoding.decode_observation(row, cipher))
        texts = session.encoder.encode_notes(entry, cipher)[:3]
        parts = encode_parts(entry.parts)
        await session.execute(UPDATE_OBSERVATION, id_, entry.id, entry.chain, *texts, parts)
    for row in await session.select(SELECT_REFLECTION, id_):
        reflection = thread.rekey_reflection(row_decoding.decode_reflection(row, cipher))
        texts = session.encoder.encode_reflection_texts(reflection, cipher)
        await session.execute(UPDATE_REFLECTION, id_, *texts)
