"""Sessions that clients name by themselves: threads without a line of code (docs/clients).

A session counts only where the client's own mark stands beside it, because `x-session-id` alone is sent by many programs that mean
other things by it. opencode's mark is the same id in two headers; the other two carry their program's name in the header's name. A
session that is no name, or that is told in two ways, is no session: a header that was not written for this proxy refuses no request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from om_proxy.memory.naming import decode_name


@dataclass(frozen=True, slots=True)
class SessionHeaders:
    """The headers by which one program tells its sessions, in lower case."""

    ids: tuple[str, ...]  # all are sent once, and say the same
    parent: str | None = None  # sent by a sub-agent only, whose conversation is a thread of its own
    users: tuple[str, ...] = ()  # whose session it is: two users of one key may choose the same id

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.ids, *((self.parent,) if self.parent else ()), *self.users)


CLIENT_SESSIONS: Mapping[str, SessionHeaders] = {
    "opencode": SessionHeaders(("x-session-id", "x-session-affinity"), parent="x-parent-session-id"),
    "litellm": SessionHeaders(("x-litellm-session-id",), users=("x-litellm-end-user-id", "x-litellm-customer-id")),
    "helicone": SessionHeaders(("helicone-session-id",), users=("helicone-user-id",)),
}


class Session(NamedTuple):
    thread: str
    resource: str | None
    is_sub_agent: bool


def find_session(named: Mapping[str, Sequence[str]], programs: Sequence[str]) -> Session | None:
    """The first session that these headers tell. `named`: their values by name; `programs`: keys of CLIENT_SESSIONS, in order."""
    found = (_session(named, CLIENT_SESSIONS[program]) for program in programs)
    return next((session for session in found if session is not None), None)


def _session(named: Mapping[str, Sequence[str]], headers: SessionHeaders) -> Session | None:
    values = [value for name in headers.ids for value in named.get(name, ())]
    if len(values) != len(headers.ids) or len(set(values)) != 1:
        return None
    thread = _name(values[0])
    users = [value for name in headers.users for value in named.get(name, ())]
    user = _name(users[0]) if len(set(users)) == 1 else None
    if not thread or (users and not user):
        return None  # in doubt whose it is, there is no memory
    return Session(thread, user, is_sub_agent=headers.parent is not None and headers.parent in named)


def _name(value: str) -> str | None:
    value = value.strip(" \t")
    return None if "{{" in value else decode_name(value)
