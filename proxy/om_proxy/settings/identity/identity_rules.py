"""The configuration's rules about identity, and the names of the headers that they use."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Literal

from om_proxy.settings.identity.header_values import Headers
from om_proxy.settings.identity.keyed_hashes import hash_key

# for names in the path (edge/routing.py); no header can have these names
PATH_THREAD = ":om-thread"
PATH_RESOURCE = ":om-resource"

CREDENTIAL_HEADERS = ("authorization", "x-api-key", "api-key")
# for a key of `auth.keys`, if `authorization` has the provider's key
GATEWAY_KEY_HEADERS = ("x-om-authorization", "x-memory-gateway-authorization")
MODE_HEADER = "x-om-mode"
HISTORY_HEADER = "x-om-history"
TASK_HEADER = "x-om-task"
TIMEZONE_HEADER = "x-om-timezone"
# names no caller: it asks for events in the reply
EVENTS_HEADER = "x-om-events"
# read only if the configuration lets a request choose its scope; else ignored as unknown
SCOPE_HEADER = "x-om-scope"
# read only if there is a secret to verify it
TOKEN_HEADER = "x-om-token"  # noqa: S105 - the name of a header
SITE_HEADER = "sec-fetch-site"  # the site of a browser's page (W3C Fetch Metadata)
# By these another proxy, in front of this one, shows itself. Each with what it names: the client's
# address, the host that was asked for, both (RFC 7239), or neither.
FORWARDING_HEADERS: Mapping[str, Literal["address", "host", "both", "neither"]] = {
    "x-forwarded-for": "address",
    "x-real-ip": "address",
    "x-client-ip": "address",
    "true-client-ip": "address",
    "cf-connecting-ip": "address",
    "x-cluster-client-ip": "address",
    "fastly-client-ip": "address",
    "fly-client-ip": "address",
    "x-envoy-external-address": "address",
    "client-ip": "address",
    "x-azure-clientip": "address",
    "cloudfront-viewer-address": "address",
    "x-original-forwarded-for": "address",
    "x-forwarded-host": "host",
    "x-original-host": "host",
    "forwarded": "both",
    "via": "neither",
    "cdn-loop": "neither",
    "tailscale-user-login": "neither",
}
# of every other such header, which names neither: `x-forwarded-proto`, `x-forwarded-port`, …
FORWARDING_BEGINNING = "x-forwarded-"
_FORWARDING_BEGINNING = FORWARDING_BEGINNING.encode()
# taken where the configuration asks for them, or elsewhere
_FURTHER_HEADERS = (EVENTS_HEADER, SCOPE_HEADER, TOKEN_HEADER, *GATEWAY_KEY_HEADERS)
_MAX_SHOWN_HEADER_CHARS = 60
_MIN_LIKENESS = 0.75  # share of common characters; all these names have their first five in common
# by which a request shows whether it comes from a page of another site
PAGE_HEADERS = ("host", "origin", SITE_HEADER)


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


@dataclass(frozen=True, slots=True, eq=False)
class IdentityRules:
    """The configuration's rules about identity. Header names are in lower case.

    Each configuration makes one object. The object is equal only to itself, because `identify`
    caches callers by it, and hashing all its names would take longer than the lookup.
    """

    thread_headers: tuple[str, ...] = ("x-om-thread", "x-thread-id", "x-openwebui-chat-id")
    resource_headers: tuple[str, ...] = ("x-om-resource", "x-resource-id", "x-openwebui-user-id")
    # the programs whose own sessions name threads, in order
    sessions: tuple[str, ...] = tuple(CLIENT_SESSIONS)
    # pairs of tenant and key; empty: the caller's own credential identifies the tenant
    keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    loopback_only: bool = True  # whether the server is bound to loopback only
    scope_override: bool = False  # whether a request may choose its scope
    # the key that signs X-OM-Token; None: the header is not read
    token_secret: bytes | None = field(default=None, repr=False)
    token_audience: str | None = None  # what the claim `aud` of a token must name
    token_required: bool = False  # whether only a token can name a thread
    # the names of all headers that identify a caller; see `select_identity_headers`
    identity_headers: frozenset[bytes] = field(init=False, repr=False, compare=False)
    # `keys`, with the SHA-256 of each key
    key_hashes: tuple[tuple[str, bytes], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = frozenset(name.encode("latin-1") for name in self._list_headers())
        object.__setattr__(self, "identity_headers", names)
        hashes = tuple((tenant, hash_key(key.encode())) for tenant, key in self.keys)
        object.__setattr__(self, "key_hashes", hashes)

    def select_identity_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers that identify a caller."""
        names = self.identity_headers
        if not self.reads_locality:
            return [header for header in headers if header[0] in names]
        return [
            header
            for header in headers
            if header[0] in names or header[0].startswith(_FORWARDING_BEGINNING)
        ]

    @property
    def reads_locality(self) -> bool:
        """Whether it counts that a request comes from this machine."""
        return self.loopback_only and not self.keys

    def _list_headers(self) -> list[str]:
        names = [*self.thread_headers, *self.resource_headers, PATH_THREAD, PATH_RESOURCE]
        names += [*CREDENTIAL_HEADERS, MODE_HEADER, HISTORY_HEADER, TASK_HEADER, TIMEZONE_HEADER]
        names += [header for program in self.sessions for header in CLIENT_SESSIONS[program].all]
        if not self.keys:
            names += PAGE_HEADERS
        if self.reads_locality:
            names += FORWARDING_HEADERS
        if self.scope_override:
            names.append(SCOPE_HEADER)
        if self.token_secret:
            names.append(TOKEN_HEADER)
        if self.keys:
            names += GATEWAY_KEY_HEADERS
        return names


def find_unknown_header(
    headers: Headers, rules: IdentityRules, told: Container[str]
) -> tuple[str, str] | None:
    """Return the first header whose name begins as this proxy's do, and is none of them and not in
    `told`, in ASCII; and the one that may be meant, or ""."""
    known = {name.decode("latin-1") for name in rules.identity_headers}.union(_FURTHER_HEADERS)
    for raw_name, _ in headers:
        name = raw_name.decode("ascii", "backslashreplace")[:_MAX_SHOWN_HEADER_CHARS]
        if name.startswith("x-om-") and name not in known and name not in told:
            import difflib  # noqa: PLC0415 - 6 ms, needed for a fault only

            return name, "".join(difflib.get_close_matches(name, known, n=1, cutoff=_MIN_LIKENESS))
    return None
