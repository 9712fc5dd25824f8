"""Find the session that a client names by itself, so that its conversation gets a thread without
any configuration (docs/clients).

A session counts only if the headers are certainly this client's: many programs send `x-session-id`,
but mean other things by it. opencode sends the same id in two headers; the other two programs put
their name into the name of the header. A session is ignored if it is not a valid name, or if two
headers disagree. No request is refused for a header that was not written for this proxy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from om_proxy.settings.identity.naming import decode_name


@dataclass(frozen=True, slots=True)
class SessionHeaders:
    """The headers in which one program sends its sessions, in lower case."""

    ids: tuple[str, ...]  # the program sends each of them once, with the same value
    parent: str | None = None  # only a sub-agent sends it; its conversation is a thread of its own
    users: tuple[str, ...] = ()  # the session's user: two users of one key may choose the same id

    @property
    def all(self) -> tuple[str, ...]:
        """The names of all these headers."""
        return (*self.ids, *((self.parent,) if self.parent else ()), *self.users)


CLIENT_SESSIONS: Mapping[str, SessionHeaders] = {
    "opencode": SessionHeaders(
        ("x-session-id", "x-session-affinity"), parent="x-parent-session-id"
    ),
    "litellm": SessionHeaders(
        ("x-litellm-session-id",), users=("x-litellm-end-user-id", "x-litellm-customer-id")
    ),
    "helicone": SessionHeaders(("helicone-session-id",), users=("helicone-user-id",)),
}


class ClientSession(NamedTuple):
    """The names that a client's own session gives to a conversation."""

    thread: str
    resource: str | None
    is_sub_agent: bool


def find_session(
    values_by_name: Mapping[str, Sequence[str]], programs: Sequence[str]
) -> ClientSession | None:
    """Return the first session in these headers. `programs`: keys of CLIENT_SESSIONS, in order."""
    for program in programs:
        session = _read_session(values_by_name, CLIENT_SESSIONS[program])
        if session is not None:
            return session
    return None


def _read_session(
    values_by_name: Mapping[str, Sequence[str]], headers: SessionHeaders
) -> ClientSession | None:
    values = [value for name in headers.ids for value in values_by_name.get(name, ())]
    if len(values) != len(headers.ids) or len(set(values)) != 1:
        return None
    thread = _read_name(values[0])
    users = [value for name in headers.users for value in values_by_name.get(name, ())]
    user = _read_name(users[0]) if len(set(users)) == 1 else None
    if not thread or (users and not user):
        return None  # without a certain owner there is no memory
    is_sub_agent = headers.parent is not None and headers.parent in values_by_name
    return ClientSession(thread, user, is_sub_agent)


def _read_name(value: str) -> str | None:
    value = value.strip(" \t")
    return None if "{{" in value else decode_name(value)
