"""Identify the caller of a request: its tenant, resource and thread. Only the headers are read
(docs/contributing/behaviour.md#identity).

The tenant comes only from the verified credential. A request in doubt gets no memory (fail closed).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from om_proxy.common.errors import BadRequest, Unauthorized
from om_proxy.common.reasons import Reason
from om_proxy.memory.model import Key, Scope
from om_proxy.settings.identity.header_values import (
    Headers,
    ValuesByName,
    group_by_name,
    read_choice,
    read_timezone,
    read_value,
)
from om_proxy.settings.identity.identity_rules import (
    HISTORY_HEADER,
    MODE_HEADER,
    SCOPE_HEADER,
    TASK_HEADER,
    TIMEZONE_HEADER,
    IdentityRules,
)
from om_proxy.settings.identity.naming import decode_name, normalize_name
from om_proxy.settings.identity.spending import decide_spending
from om_proxy.settings.identity.tenants import select_tenant
from om_proxy.settings.identity.thread_names import (
    RequestNames,
    check_times,
    has_thread_name,
    read_names,
)

Mode = Literal["on", "read", "write", "off"]
History = Literal["auto", "full", "window", "new"]  # X-OM-History: what the sent messages are

MODE_CHOICES: tuple[Mode, ...] = ("on", "read", "write", "off")
HISTORY_CHOICES: tuple[History, ...] = ("auto", "full", "window", "new")
SCOPE_CHOICES: tuple[Scope, ...] = ("thread", "resource")
# a caller is cached by its headers up to so many characters; keys have 200, some tokens 2 000
MAX_CACHED_HEADER_CHARS = 4_096
MAX_CACHED_CALLERS = 4_096


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity of a request. Without a `key` there is no memory, and `reason` gives the reason
    in one word of the receipt."""

    key: Key | None
    tenant: str | None
    mode: Mode = "on"
    reason: Reason | None = None
    history: History = "auto"
    timezone: str | None = None  # IANA name
    # the scope that the request chose, if it may choose; None: the configured scope
    scope: Scope | None = None
    # if False, `key.resource` is the thread itself, and resource scope is impossible
    has_named_resource: bool = False
    is_for_one_thread: bool = False  # whether a token lets it read this thread alone
    may_spend_operator_key: bool = False  # settings/identity/spending.py

    def choose_look_up_scope(self, configured: Scope | None) -> Scope:
        """Return how far the caller's look-ups reach. `configured`: `retrieval.scope`."""
        return choose_reading_scope(configured, is_for_one_thread=self.is_for_one_thread)

    def without_memory(self, reason: Reason | None) -> Caller:
        """Return the caller of a request that has no memory, for this reason."""
        return replace(self, reason=self.reason or reason)

    def write_only(self) -> Caller:
        """Return the caller of a request that is stored, and whose prompt stays as it is."""
        return replace(self, mode="write")

    def name_sub_agent(self, value: bytes) -> Caller:
        """Return the caller of a request of an agent, which has a thread of its own beside that of
        the agent that it works for. `value`: of the header that names it. A token for one thread is
        for no other."""
        key = self.key
        if key is None:
            return self
        agent = decode_name(read_value(value.decode("latin-1")))
        thread = normalize_name(f"{key.thread}/{agent}") if agent else None
        if not thread or self.is_for_one_thread:
            return self.without_memory(Reason.NO_THREAD)
        resource = key.resource if self.has_named_resource else thread
        return replace(self, key=Key(key.tenant, resource, thread))


def choose_reading_scope(configured: Scope | None, *, is_for_one_thread: bool) -> Scope:
    """Return how far a reader of messages reads: a caller that may read one thread reads that
    alone, whatever the settings say."""
    return "thread" if is_for_one_thread else configured or "thread"


def identify(
    headers: Headers, rules: IdentityRules, secret: bytes, now: float = math.inf
) -> Caller:
    """Identify the caller of a request. Raises BadRequest for an invalid header, Unauthorized for
    an invalid key or token.

    `now`: unix seconds. Without it, every token has expired.
    """
    # lists, because generators take twice as long
    identity_headers = tuple(rules.select_identity_headers(headers))
    size = sum([len(value) for _, value in identity_headers])
    identify_headers = _identify if size <= MAX_CACHED_HEADER_CHARS else _identify.__wrapped__
    caller, names = identify_headers(identity_headers, rules, secret)
    if names.expires is not None:
        check_times(names, now)
    return caller


def identify_off_route(
    headers: Headers, rules: IdentityRules, secret: bytes, now: float
) -> Caller | None:
    """Identify the caller on a route without memory; None if the request names no thread. No error
    is raised: on such a route, only the receipt reports invalid names."""
    try:
        caller = identify(headers, rules, secret, now)
    except (BadRequest, Unauthorized):
        values_by_name = group_by_name(rules.select_identity_headers(headers))
        return Caller(None, None) if has_thread_name(values_by_name, rules) else None
    return None if caller.reason == Reason.NO_THREAD else caller


# Cached, because it takes 25 µs and the same callers return. The cache holds credentials: it is
# bounded in items and bytes, and never leaves the process.
@lru_cache(maxsize=MAX_CACHED_CALLERS)
def _identify(
    headers: tuple[tuple[bytes, bytes], ...], rules: IdentityRules, secret: bytes
) -> tuple[Caller, RequestNames]:
    values_by_name = group_by_name(headers)
    tenant = select_tenant(values_by_name, rules, secret)
    names = read_names(values_by_name, rules, tenant)
    caller = _make_caller(values_by_name, rules, tenant, names)
    may_spend = decide_spending(values_by_name, rules)
    return replace(caller, may_spend_operator_key=may_spend), names


def _make_caller(
    values_by_name: ValuesByName, rules: IdentityRules, tenant: str | None, names: RequestNames
) -> Caller:
    thread, resource = names.thread, names.resource
    if thread is None:  # the request is passed through, whatever its other headers are
        return Caller(None, tenant, "on", Reason.NO_THREAD)
    mode: Mode = read_choice(values_by_name, MODE_HEADER, MODE_CHOICES) or "on"
    history: History = read_choice(values_by_name, HISTORY_HEADER, HISTORY_CHOICES) or "auto"
    timezone = read_timezone(values_by_name, TIMEZONE_HEADER)
    scope = read_choice(values_by_name, SCOPE_HEADER, SCOPE_CHOICES)
    if tenant is None:
        return Caller(None, None, mode, Reason.NO_CREDENTIAL)
    if mode == "off":
        return Caller(None, tenant, mode, Reason.MODE_OFF)
    if any(read_value(task) for task in values_by_name.get(TASK_HEADER, [])):
        return Caller(None, tenant, mode, Reason.SIDE_REQUEST)
    key = Key(tenant, resource or thread, thread)
    has_named_resource = resource is not None
    return Caller(
        key,
        tenant,
        mode,
        None,
        history,
        timezone,
        scope,
        has_named_resource=has_named_resource,
        is_for_one_thread=names.only_thread is not None,
    )
