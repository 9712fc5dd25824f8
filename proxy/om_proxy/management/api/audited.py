"""Answer a route, and leave a record in the audit: the one place for both, so that no route can
forget it. The admin API and the command ask here."""

from __future__ import annotations

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.management.api.answers import StreamedAnswer
from om_proxy.management.api.requests import AdminCall
from om_proxy.management.api.route import AdminRoute, Answer
from om_proxy.management.api.services import AdminServices
from om_proxy.memory.model import RESOURCE_THREAD, Key

# the count of a change that the store broke off: a part of it may be done
UNFINISHED = "unfinished"


async def answer_route(route: AdminRoute, services: AdminServices, call: AdminCall) -> Answer:
    """Return the route's answer. A change is recorded once it has succeeded; one that the store
    broke off too, since a part of it may be done. What only reads is recorded once an hour, if it
    sends text: HEAD sends none."""
    record = services.audit_log.record
    who, key = call.visitor.who, _find_audited_key(call)
    if not route.changes_memory:
        answer = await route.handler(services, call)
        if route.shows_text and call.visitor.may_read_text and call.wants_body:
            read_key = answer.about if isinstance(answer, StreamedAnswer) and answer.about else key
            await services.audit_log.record_reading(who, route.name, read_key)
        return answer
    try:
        answer = await route.handler(services, call)
    except Conflict:  # nothing is changed
        raise
    except StorageError:
        await record(who, route.name, key, {UNFINISHED: 1})
        raise
    counts = route.count_changes(answer) if route.count_changes else None
    await record(who, route.name, key, counts)
    return answer


def _find_audited_key(call: AdminCall) -> Key:
    return call.key or Key(call.tenant or "", "", RESOURCE_THREAD)
