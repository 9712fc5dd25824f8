"""Decide whether a request may be paid with the operator's key, `upstream[].api_key`.

The rule: a caller who may not read memory may not spend a key that it did not bring.

- With `auth.keys`, every route asks for one of these keys before it comes here.
- Without them, the caller needs a credential, or must be a program of this machine on a loopback
  bind (identity/local_requests.py).
- On a loopback bind, a credential does not count under a host name that a stranger can own, nor
  where a reverse proxy forwards the request of another machine. The operator's key replaces the
  credential, so no model server ever checks it. A page whose name merely resolves to this machine
  (DNS rebinding) can send any, and so can whoever reaches the reverse proxy.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from om_proxy.identity.callers import MAX_CACHED_CALLERS, MAX_CACHED_HEADER_CHARS
from om_proxy.identity.header_values import Headers, group_by_name
from om_proxy.identity.identity_rules import (
    CREDENTIAL_HEADERS,
    FORWARDING_HEADERS,
    SITE_HEADER,
    IdentityRules,
)
from om_proxy.identity.local_requests import is_forwarded, is_local_request, read_host_name
from om_proxy.identity.tenants import has_credential

SPENDING_MESSAGE = (
    "upstream.api_key is not for this request: it comes from a web page of another site, from "
    "another machine, or under a host name that is not this machine's. Either set auth.keys and "
    "send one of them as `Authorization: Bearer …`, or ask from this machine as http://127.0.0.1, "
    "and from a page under that very name"
)
PREFLIGHT_HEADER = b"access-control-request-method"  # of a browser, before a page's own request
_READ_HEADERS = frozenset(
    name.encode()
    for name in (*CREDENTIAL_HEADERS, "host", "origin", SITE_HEADER, *FORWARDING_HEADERS)
)
# no stranger can own a name below these: RFC 6761, RFC 6762, and `internal` by ICANN's decision
_PRIVATE_DOMAINS = ("localhost", "local", "internal")


def may_spend_operator_key(headers: Headers, rules: IdentityRules) -> bool:
    """Return whether the caller may be served with a key that it did not bring."""
    if rules.keys:
        return True
    # lists, because generators take twice as long
    read = tuple([header for header in headers if header[0] in _READ_HEADERS])
    size = sum([len(value) for _, value in read])
    decide = _may_spend if size <= MAX_CACHED_HEADER_CHARS else _may_spend.__wrapped__
    return decide(read, rules)


# cached as callers are (identity/callers.py): the same ones return, and it takes 20 µs
@lru_cache(maxsize=MAX_CACHED_CALLERS)
def _may_spend(headers: tuple[tuple[bytes, bytes], ...], rules: IdentityRules) -> bool:
    values_by_name = group_by_name(headers)
    if not rules.loopback_only:
        return has_credential(values_by_name)
    if is_local_request(values_by_name):
        return True
    if is_forwarded(values_by_name):
        return False
    hosts = values_by_name.get("host", [])
    return has_credential(values_by_name) and not any(map(_is_public_name, hosts))


def is_preflight(headers: Headers) -> bool:
    """Return whether a browser asks if a page may send its request. It asks without a credential."""
    return any(name == PREFLIGHT_HEADER for name, _ in headers)


def _is_public_name(host: str) -> bool:
    """Return whether a stranger can own the name in a Host header, and let it resolve to this
    machine: it is no address, has several labels, and is in no private domain."""
    name = read_host_name(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        _, dot, domain = name.rpartition(".")
        return not name or (bool(dot) and domain not in _PRIVATE_DOMAINS)
    return False
