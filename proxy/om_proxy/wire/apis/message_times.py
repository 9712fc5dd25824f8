"""Take `created_at` out of the messages of a request: when each was said. No API knows the member,
and a fingerprint must not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BadRequest
from om_proxy.memory.value_bounds import MAX_UNIX_SECONDS
from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.json_text import decode_or_none
from om_proxy.wire.apis.split import Units

TIME_MEMBER = "created_at"
_LIST_MEMBERS: dict[ApiName, str] = {
    "chat": "messages",
    "messages": "messages",
    "responses": "input",
}
_members = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])
_value: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

Times = tuple[float | None, ...]  # unix seconds, by element of the request's list; None: not given


def take_times(body: bytes, api: ApiName) -> tuple[bytes, Times]:
    """Return the body without the times of its messages, and the times; no times: none is given.
    All other values keep their bytes, but for half characters. Raise BadRequest for a time that cannot be read."""
    name = _LIST_MEMBERS[api]
    if TIME_MEMBER.encode() not in body:
        return body, ()
    members = decode_or_none(_members, body) or {}
    elements = decode_or_none(_list, members.get(name, b""))
    if elements is None:
        return body, ()  # the API's own reader says what is wrong
    taken = [_take_time(raw, f"{name}[{place}]") for place, raw in enumerate(elements)]
    if all(at is None for _, at in taken):
        return body, ()
    members[name] = Raw(msgspec.json.encode([raw for raw, _ in taken]))
    return msgspec.json.encode(members), tuple(at for _, at in taken)


def _take_time(raw: Raw, place: str) -> tuple[Raw, float | None]:
    members = decode_or_none(_members, raw) or {}  # {}: no object
    written = bytes(members.pop(TIME_MEMBER, b"null")).strip()
    if written == b"null":
        return raw, None
    at = read_instant(decode_or_none(_value, written))  # a number may be beyond all floats
    if at is None:
        raise BadRequest(
            f"{place}: {TIME_MEMBER} is no time: give unix seconds, or ISO 8601 with a zone, as in "
            "2026-01-02T10:00:00Z",
            param=TIME_MEMBER,
        )
    return Raw(msgspec.json.encode(members)), at


def read_instant(value: Any) -> float | None:
    """Return unix seconds of a number of them, or of ISO 8601 with a zone; None: it is neither, or
    no time since 1970."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        value = moment.timestamp() if moment.tzinfo else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_UNIX_SECONDS else None


def list_unit_times(request: Request, times: Times) -> Times:
    """Return the times of the units of the transcript: several units may share one message of the
    request, and instructions are in front of all."""
    if not times:
        return ()
    units = request.messages
    starts: Sequence[int] = range(len(units))
    element_count = len(units)
    if isinstance(units, Units):
        starts, element_count = units.starts, len(units.elements)
    instruction_count = len(times) - element_count
    return tuple(times[instruction_count + start] for start in starts)
