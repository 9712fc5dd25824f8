"""Find the thread and the resource that a request names: by headers, path, token or session."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from om_proxy.common.errors import Unauthorized
from om_proxy.settings.identity import user_token
from om_proxy.settings.identity.header_values import (
    ValuesByName,
    read_first_name,
    read_single_value,
    read_value,
)
from om_proxy.settings.identity.identity_rules import (
    CLIENT_SESSIONS,
    PATH_RESOURCE,
    PATH_THREAD,
    TOKEN_HEADER,
    IdentityRules,
    SessionHeaders,
)
from om_proxy.settings.identity.naming import (
    MAX_NAME_BYTES,
    decode_name,
    is_valid_name,
    normalize_name,
)


class RequestNames(NamedTuple):
    """The names of a request's thread and resource. If a token proves them, they are valid from
    `not_before` to `expires`, in unix seconds."""

    thread: str | None
    resource: str | None = None
    expires: float | None = None  # None: the names come without a token
    not_before: float = -math.inf
    # the thread that the token is for, whatever conversation the headers name; None: no such one
    only_thread: str | None = None


def read_names(
    values_by_name: ValuesByName, rules: IdentityRules, tenant: str | None
) -> RequestNames:
    """Return the names that a request gives. Raises BadRequest for a header that is not a valid
    name, Unauthorized for an invalid or a missing token."""
    # headers take precedence over the path
    thread = read_first_name(values_by_name, (*rules.thread_headers, PATH_THREAD))
    session = find_session(values_by_name, rules.sessions)
    if rules.token_secret and (token := read_single_value(values_by_name, TOKEN_HEADER)):
        claims = user_token.verify_token(
            token,
            rules.token_secret,
            tenant=tenant if rules.keys else None,
            audience=rules.token_audience,
        )
        return _read_token(thread, _read_resource(values_by_name, rules), claims, session)
    if rules.token_required:
        if thread is None:  # a session does not count, because its client sends it by itself
            return RequestNames(None)
        raise Unauthorized(
            f"this server accepts a thread only in {TOKEN_HEADER}; have your application make a token"
        )
    return _add_session(thread, _read_resource(values_by_name, rules), session)


def has_thread_name(values_by_name: ValuesByName, rules: IdentityRules) -> bool:
    """Return whether a request tries to name a thread, with a valid name or not."""
    token_headers = (TOKEN_HEADER,) if rules.token_secret else ()
    headers = (*rules.thread_headers, PATH_THREAD, *token_headers)
    if any(read_value(value) for name in headers for value in values_by_name.get(name, [])):
        return True
    return not rules.token_required and find_session(values_by_name, rules.sessions) is not None


def check_times(names: RequestNames, now: float) -> None:
    """Raise Unauthorized if the names come from a token that is not valid now."""
    if names.expires is None:
        return
    if not user_token.is_still_valid(names.expires, now):
        raise Unauthorized(f"{TOKEN_HEADER} has expired; have your application make a new one")
    if user_token.is_too_early(names.not_before, now):
        raise Unauthorized(
            f"{TOKEN_HEADER} is not valid yet (`nbf`); send it later, or correct the clocks"
        )


def _read_resource(values_by_name: ValuesByName, rules: IdentityRules) -> str | None:
    return read_first_name(values_by_name, (*rules.resource_headers, PATH_RESOURCE))


def _add_session(
    thread: str | None, resource: str | None, session: ClientSession | None
) -> RequestNames:
    """Take the names of the client's own session if there are no others.

    The conversation of a sub-agent is never the named thread, which belongs to its parent: these
    clients send the same header for all their agents.
    """
    if session is None:
        return RequestNames(thread, resource if thread else None)
    if thread is None:
        return RequestNames(session.thread, resource or session.resource)
    # the names are equal if the session's header is configured as a thread header too
    if not session.is_sub_agent or thread == session.thread:
        return RequestNames(thread, resource)
    name = f"{thread}/{session.thread}"
    return RequestNames(name, resource) if is_valid_name(name) else RequestNames(None)


def _read_token(
    thread: str | None,
    resource: str | None,
    claims: user_token.Claims,
    session: ClientSession | None,
) -> RequestNames:
    """Return the names in the token. Headers may repeat these names, and may name the thread if the
    token does not."""
    owner = normalize_name(claims.resource)
    claimed_thread = normalize_name(claims.thread or "")
    if owner is None or (claimed_thread is None and claims.thread is not None):
        raise Unauthorized(
            f"{TOKEN_HEADER} contains an invalid name:"
            f" a name has 1 to {MAX_NAME_BYTES} bytes of printable UTF-8",
            "token",
        )
    sent_and_claimed = ((resource, owner), (thread, claimed_thread))
    if any(sent is not None and claimed not in (None, sent) for sent, claimed in sent_and_claimed):
        raise Unauthorized(
            f"{TOKEN_HEADER} is not for the thread or resource that the headers name", "token"
        )
    if claimed_thread is not None:  # the token is for this thread alone
        is_sub_agent = session is not None and session.is_sub_agent
        names = RequestNames(None if is_sub_agent else claimed_thread)
    else:
        names = _add_session(thread, owner, session)
    return RequestNames(names.thread, owner, claims.exp, claims.nbf, claimed_thread)


# ── sessions of clients ───────────────────────────────────────────────────────────────────────────


class ClientSession(NamedTuple):
    """The names that a client's own session gives to a conversation, without any configuration
    (docs/clients).

    A session counts only if the headers are certainly this client's: many programs send
    `x-session-id`, but mean other things by it. opencode sends the same id in two headers; the other
    two programs put their name into the name of the header. A session is ignored if it is not a
    valid name, or if two headers disagree. No request is refused for a header that was not written
    for this proxy.
    """

    thread: str
    resource: str | None
    is_sub_agent: bool


def find_session(values_by_name: ValuesByName, programs: Sequence[str]) -> ClientSession | None:
    """Return the first session in these headers. `programs`: keys of CLIENT_SESSIONS, in order."""
    for program in programs:
        session = _read_session(values_by_name, CLIENT_SESSIONS[program])
        if session is not None:
            return session
    return None


def _read_session(values_by_name: ValuesByName, headers: SessionHeaders) -> ClientSession | None:
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
