"""Take out what threads of a resource looked up in one that is forgotten. A thread that loses anything
gets a new version; no other thread is written."""

from __future__ import annotations

from om_proxy.memory.model import Key
from om_proxy.memory.recall.message_ids import shorten_label
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.shared.row_decoding import find_quoting_look_ups
from om_proxy.storage.sql.reencryption import change_key
from om_proxy.storage.sql.session import Session

MESSAGES_PER_PAGE = 500
HAS_LOOK_UPS = """EXISTS (SELECT 1 FROM om.message /* INDEXED BY message_look_ups */
    WHERE message.thread_id = thread.id AND look_ups IS NOT NULL)"""
# Along the resource's threads, each by the index of its look-ups. Of one that is not encrypted the
# database finds the label.
SELECT_QUOTING = f"""SELECT id, key_id, seq, look_ups
    FROM om.thread CROSS JOIN om.message /* INDEXED BY message_look_ups */
    WHERE tenant = $1 AND resource = $2 AND thread_id = id AND look_ups IS NOT NULL
    AND (id, seq) > ($3::bigint, $4::bigint)
    AND (key_id IS NOT NULL OR position($5::bytea IN look_ups) > 0)
    ORDER BY id, seq LIMIT {MESSAGES_PER_PAGE}"""
CLEAR_SOME = """UPDATE om.message SET look_ups = NULL
    WHERE thread_id = $1 AND seq = ANY ($2::bigint[])"""
SELECT_KEEPING = f"SELECT id FROM om.thread WHERE tenant = $1 AND resource = $2 AND {HAS_LOOK_UPS}"
CLEAR_ALL = """UPDATE om.message /* INDEXED BY message_look_ups */ SET look_ups = NULL
    WHERE look_ups IS NOT NULL AND thread_id = ANY ($1::bigint[])"""


def write_label(label: str) -> bytes:
    """Return the label of a thread as look-ups that are not encrypted hold it."""
    return shorten_label(label).encode()


async def remove_quotes(session: Session, key: Key, label: str, keyring: Keyring) -> None:
    """Remove the look-ups that quote a forgotten thread, inside a transaction that no other one
    writes look-ups of the resource beside. `label`: of that thread. Copies of the data hold them too,
    where keys are apart: their threads get new keys."""
    quoting: dict[int, list[int]] = {}
    last = (0, 0)
    while page := await session.select(SELECT_QUOTING, *key[:2], *last, write_label(label)):
        held = await keyring.hold(session, [row[1] for row in page])
        for id_, seqs in find_quoting_look_ups(page, held, label).items():
            quoting.setdefault(id_, []).extend(seqs)
        last = page[-1][0], page[-1][2]
    for id_, seqs in quoting.items():
        await session.execute(CLEAR_SOME, id_, seqs)
        if keyring.separate is not None:
            await change_key(session, id_, keyring)
    await session.raise_versions([*quoting])


async def remove_look_ups(session: Session, tenant: str, resource: str) -> None:
    """Remove all look-ups that the threads of a resource keep, inside a transaction as above: all of
    its threads are going."""
    keeping = [row[0] for row in await session.select(SELECT_KEEPING, tenant, resource)]
    await session.raise_versions(keeping)
    await session.execute(CLEAR_ALL, keeping)
