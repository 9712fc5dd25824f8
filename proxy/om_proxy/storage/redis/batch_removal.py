"""Remove the threads of a resource or a tenant from a Redis, some in each script."""

from __future__ import annotations

from collections.abc import Callable, Collection

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.redis.changes import Changes, read_resource, try_until_applied
from om_proxy.storage.redis.listing import (
    has_active_since,
    list_rows,
    select_resource_names,
)
from om_proxy.storage.redis.removal import (
    clear_others,
    delete_rows,
    finish_removal,
    remove_look_ups,
)
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared.forgetting import count_batch_threads
from om_proxy.storage.values.changes import ForgetBatch
from om_proxy.storage.values.records import ForgetResult

# The threads of a batch: few enough for a short script, or one that is larger.
MAX_BATCH_THREADS = 100


async def remove_batch(
    session: Session,
    tenant: str,
    resource: str | None,
    describe_forgotten: Callable[[Key], Event] | None,
    active_before: float | None = None,
) -> ForgetBatch:
    """Remove some threads of a resource or tenant: all rows of each, but not its part of a shared
    log. Shared logs go with the last batch. Events that describe forgotten threads stay: they name
    none. `active_before`: as in `Store.forget_batch`."""

    async def attempt() -> ForgetBatch | None:
        listed = await list_rows(session, tenant, resource, MAX_BATCH_THREADS + 1)
        count = count_batch_threads([one.row.live_count for one in listed[:MAX_BATCH_THREADS]])
        is_last = count == len(listed)
        keys = [one.key for one in listed[:count]]
        names = {key.resource for key in keys}
        if is_last:
            names.update(await select_resource_names(session, tenant, resource))
        changes = Changes()
        removed = await delete_rows(session, changes, keys)
        for name in sorted(names):
            log_key = Key(tenant, name, RESOURCE_THREAD)
            removed = await _leave_resource(session, changes, log_key, keys, is_last, removed)
        # after the revisions were read, so that no turn comes between
        if active_before is not None and await has_active_since(
            session, tenant, resource, active_before
        ):
            raise Conflict("a thread of the resource had a turn since")
        if is_last:
            changes.drop_leases(tenant, resource)
        if describe_forgotten:
            changes.add_events(Key(tenant, "", ""), map(describe_forgotten, keys))
        finish_removal(session, changes, [Key(tenant, name, "") for name in names], removed)
        applied = await changes.apply(session)
        if applied.failed is not None:
            return None
        # a thread may have begun meanwhile
        is_last = is_last and not await list_rows(session, tenant, resource, 1)
        return ForgetBatch(removed, tuple(keys), is_last)

    return await try_until_applied(attempt)


async def _leave_resource(
    session: Session,
    changes: Changes,
    log_key: Key,
    keys: Collection[Key],
    is_last: bool,
    removed: ForgetResult,
) -> ForgetResult:
    """Add what a batch changes in one resource besides its threads. Return the sums with that."""
    state = await read_resource(session, log_key.tenant, log_key.resource)
    changes.expect_revision(log_key.tenant, log_key.resource, state.revision)
    if is_last and RESOURCE_THREAD in state.threads:
        log_result = await delete_rows(session, changes, [log_key])
        removed = removed.add(log_result._replace(threads=0))
    told = [log_key._replace(thread=name) for name in state.told]
    await clear_others(session, changes, [key for key in told if key not in keys])
    quoting = [log_key._replace(thread=name) for name in sorted(state.quoting)]
    await remove_look_ups(session, changes, [key for key in quoting if key not in keys])
    return removed
