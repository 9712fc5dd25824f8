"""Decide whether a request may be paid with a key of the operator's: `upstream[].api_key`, or that of
a memory model (engine/policy.py).

The rule: a caller who may not read memory may not spend a key that it did not bring.

- With `auth.keys`, every route asks for one of these keys before it comes here.
- Without them, the caller needs a credential, or must be a program of this machine on a loopback
  bind (settings/identity/local_requests.py).
- A credential that a browser adds by itself (`Basic`, from an address with a name and a password)
  does not count where a page of another site asks.
- On a loopback bind, no credential counts under another host name than this machine's own,
  nor where a reverse proxy forwards the request of another machine. Either the operator's key
  replaces the credential, or no server has checked it before memory spends. A page whose name
  merely resolves to this machine (DNS rebinding) can send any, and so can whoever reaches the
  reverse proxy.
"""

from __future__ import annotations

from om_proxy.settings.identity.header_values import Headers, ValuesByName, group_by_name
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.local_requests import (
    is_forwarded,
    is_local_request,
    is_own_host,
    read_host_name,
)
from om_proxy.settings.identity.tenants import has_credential

SPENDING_MESSAGE = (
    "upstream.api_key, or the key of a memory model, is not for this request: it comes from a web "
    "page of another site, from another machine, or under a host name that is not this machine's. "
    "Either set auth.keys and send one of them as `Authorization: Bearer …` or `x-api-key`, or ask from this "
    "machine as http://127.0.0.1, and from a page under that very name"
)
# of the machine itself, in the containers that run on it (Docker, Podman, Lima); `internal` is no
# public domain
CONTAINER_NAMES_OF_THE_HOST = (
    "host.docker.internal",
    "gateway.docker.internal",
    "host.containers.internal",
    "host.lima.internal",
)
PREFLIGHT_HEADER = b"access-control-request-method"  # of a browser, before a page's own request


def may_spend_operator_key(headers: Headers, rules: IdentityRules) -> bool:
    """Return whether the caller may be served with a key that it did not bring. It takes 20 µs: of a
    caller who is identified, `Caller.may_spend_operator_key` is known."""
    return decide_spending(group_by_name(rules.select_identity_headers(headers)), rules)


def decide_spending(values_by_name: ValuesByName, rules: IdentityRules) -> bool:
    """Decide it by the headers that identify the caller."""
    if rules.keys:
        return True
    if not rules.loopback_only:
        return has_credential(values_by_name)
    if is_local_request(values_by_name):
        return True
    if is_forwarded(values_by_name) or any(map(_is_foreign_host, values_by_name.get("host", []))):
        return False
    return has_credential(values_by_name)


def is_preflight(headers: Headers) -> bool:
    """Return whether a browser asks if a page may send its request. It asks without a credential."""
    return PREFLIGHT_HEADER in [name for name, _ in headers]


def _is_foreign_host(host: str) -> bool:
    """Return whether another machine may own the name in a Host header, and let it resolve to this
    one: by DNS, or in the local network by mDNS or LLMNR. No machine owns a name below `localhost`
    (RFC 6761), and containers know the machine under names of their own."""
    name = read_host_name(host)
    is_own_name = name.endswith(".localhost") or name in CONTAINER_NAMES_OF_THE_HOST
    return not (is_own_name or is_own_host(host))
