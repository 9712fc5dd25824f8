"""Serve as `om-proxy` does, with a fault planted: what the checker must find in a history of it.

Usage: python -m tests.e2e.replicas.planted FAULT serve --config om-proxy.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from om_proxy import cli
from om_proxy.memory.model import Memory
from om_proxy.storage.postgres import commit, queries, store
from om_proxy.storage.postgres.session import Session


def _write_without_version_check() -> None:
    """A commit overwrites one that it has not seen."""
    commit._UPDATE_THREAD = _replace_one(
        commit._UPDATE_THREAD, "thread.version = $4", "$4::bigint > 0"
    )


def _keep_cache() -> None:
    """A process that holds a memory does not ask whether others have written it since."""
    select_newest = queries.select_newest

    async def keep(session: Session, held: Sequence[Memory]) -> tuple[Memory, ...]:
        known = all(memory.version for memory in held)
        return tuple(held) if known else await select_newest(session, held)

    queries.select_newest = keep


def _take_any_lease() -> None:
    """A lease is taken from whoever holds it."""
    store.TAKE_LEASE = _replace_one(
        store.TAKE_LEASE, "lease.holder = excluded.holder OR", "lease.until > 0 OR"
    )


def _replace_one(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


# by name: how to plant it, and what the checker then finds
FAULTS: dict[str, tuple[Callable[[], None], str]] = {
    "no-version-check": (_write_without_version_check, "lost"),
    "cache-kept": (_keep_cache, "stale"),
    "lease-for-all": (_take_any_lease, "owned_twice"),
}


if __name__ == "__main__":
    FAULTS[sys.argv[1]][0]()
    sys.exit(cli.main(sys.argv[2:]))
