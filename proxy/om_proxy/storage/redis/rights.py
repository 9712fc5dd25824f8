"""Look what the user of a connection may do.

A script that the server stops in the middle, for want of a right, is not rolled back: half of a turn
would be stored. So a connection whose user lacks one is refused before anything is written.
"""

from __future__ import annotations

from redis.exceptions import NoPermissionError

from om_proxy.common.errors import StorageError
from om_proxy.storage.redis.session import Session

NEEDED_RIGHTS = (
    "+@string +@hash +@set +@sortedset +@keyspace +@connection +@scripting -@dangerous "
    "+select +client|setname +time +info +bgrewriteaof +config|get"
)


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
