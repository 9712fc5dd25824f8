"""Who is asking: tenant, resource and thread of a request, from its headers alone (behaviour.md 2).

The tenant comes from the verified credential and from nothing else; whatever is in doubt gets no memory (fail closed).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeVar
from zoneinfo import ZoneInfo

from proxy.errors import BadRequest, Unauthorized
from proxy.memory.model import Key

Headers = Iterable[tuple[bytes, bytes]]  # names in lower case, as ASGI gives them
Mode = Literal["on", "read", "write", "off"]
History = Literal["auto", "full", "window", "new"]  # X-OM-History: what the sent messages are

_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,256}")
_TEMPLATE = re.compile(r"\{\{.*\}\}")  # a client's header template that nobody filled in
_CREDENTIALS = ("authorization", "x-api-key", "api-key")
_SAID = ("x-om-mode", "x-om-history", "x-om-task", "x-om-timezone")
_MODES: tuple[Mode, ...] = ("on", "read", "write", "off")
_HISTORIES: tuple[History, ...] = ("auto", "full", "window", "new")
_Choice = TypeVar("_Choice", bound=str)
LOCAL = "local"  # the tenant of callers without a credential on a loopback bind


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """What the configuration says about identity. Header names are in lower case. Made once per configuration, and equal to
    itself only: `identify` finds a caller it knows by these rules, and hashing all their names takes longer than that."""

    thread_headers: tuple[str, ...] = ("x-om-thread", "x-thread-id", "x-openwebui-chat-id")
    resource_headers: tuple[str, ...] = ("x-om-resource", "x-resource-id", "x-openwebui-user-id")
    keys: tuple[tuple[str, str], ...] = field(
        default=(), repr=False
    )  # (tenant, key); empty: the caller's own credential keys the tenant
    loopback: bool = True  # whether the server is bound to loopback only
    memory: bool = True  # `memory.enabled`
    read: frozenset[bytes] = field(init=False, repr=False, compare=False)  # the headers an identity is made of

    def __post_init__(self) -> None:
        names = (*self.thread_headers, *self.resource_headers, *_CREDENTIALS, *_SAID)
        object.__setattr__(self, "read", frozenset(n.encode("latin-1") for n in names))


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's identity. Without a `key` there is no memory, and `reason` says why in one word of the receipt."""

    key: Key | None
    tenant: str | None
    mode: Mode = "on"
    reason: str | None = None
    history: History = "auto"
    timezone: str | None = None  # IANA name


def identify(headers: Headers, rules: Rules, secret: bytes) -> Caller:
    """The caller; raises BadRequest for a header that cannot be meant, Unauthorized where keys are configured and none fits."""
    return _identified(tuple(h for h in headers if h[0] in rules.read), rules, secret)


@lru_cache(maxsize=4_096)  # 25 µs, and callers come again; it holds credentials, so it is bounded and in memory only
def _identified(headers: tuple[tuple[bytes, bytes], ...], rules: Rules, secret: bytes) -> Caller:
    named = _by_name(headers)
    tenant = _tenant(named, rules, secret)
    thread = _first(named, rules.thread_headers)
    if thread is None:
        return Caller(None, tenant, "on", "no-thread")  # passes through, whatever its other headers say
    mode = _choice(named, "x-om-mode", _MODES, "on")
    history = _choice(named, "x-om-history", _HISTORIES, "auto")
    timezone = _timezone(named)
    resource = _first(named, rules.resource_headers)
    if tenant is None:
        return Caller(None, None, mode, "no-credential")
    if not rules.memory:
        return Caller(None, tenant, mode, "disabled")
    if mode == "off":
        return Caller(None, tenant, mode, "mode-off")
    if named.get("x-om-task", [""])[0].strip():
        return Caller(None, tenant, mode, "side-request")
    return Caller(Key(tenant, resource or thread, thread), tenant, mode, None, history, timezone)


def admit(headers: Headers, rules: Rules) -> None:
    """Raise Unauthorized unless the caller may use the server at all: what every route asks, memory or not."""
    if rules.keys:
        _owner(_credential(_by_name(headers)), rules)


def _by_name(headers: Headers) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for name, value in headers:
        named.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return named


def _first(named: Mapping[str, list[str]], names: Sequence[str]) -> str | None:
    """The first usable value in the order of the names. All present ones are checked: a bad one is never passed over in silence."""
    found = None
    for name in names:
        values = named.get(name, [])
        if len(values) > 1:
            raise BadRequest(f"header {name} was sent {len(values)} times; send it once", "om_bad_header", name)
        value = values[0].strip() if values else ""
        if not value or _TEMPLATE.search(value):
            continue
        if not _ID.fullmatch(value):
            raise BadRequest(
                f"header {name} must be 1 to 256 of the characters A-Z a-z 0-9 . _ : @ / + = -", "om_bad_header", name
            )
        found = found or value
    return found


def _choice(named: Mapping[str, list[str]], name: str, allowed: Sequence[_Choice], default: _Choice) -> _Choice:
    values = named.get(name)
    if not values or not values[0].strip():
        return default
    value = values[0].strip().lower()
    chosen = next((a for a in allowed if a == value), None)
    if chosen is None or len(values) > 1:
        raise BadRequest(f"header {name} must be one of: {', '.join(allowed)}", "om_bad_header", name)
    return chosen


def _timezone(named: Mapping[str, list[str]]) -> str | None:
    name = ",".join(named.get("x-om-timezone", [])).strip()
    if not name or _TEMPLATE.search(name):
        return None
    try:
        return ZoneInfo(name).key
    except (OSError, ValueError, KeyError) as exc:
        raise BadRequest(
            "header x-om-timezone must be an IANA time zone, as in Europe/Berlin", "om_bad_header", "x-om-timezone"
        ) from exc


def _credential(named: Mapping[str, list[str]]) -> str | None:
    """The request's credential without its scheme; raises BadRequest when two headers carry different ones (CVE-2026-45339)."""
    found = {bare for name in _CREDENTIALS for value in named.get(name, []) if (bare := _bare(value))}
    if len(found) > 1:
        raise BadRequest(
            "two different credentials were sent (Authorization, x-api-key, api-key); send one", "om_two_credentials"
        )
    return next(iter(found), None)


def _bare(value: str) -> str:
    value = value.strip()
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value


def _tenant(named: Mapping[str, list[str]], rules: Rules, secret: bytes) -> str | None:
    key = _credential(named)
    if rules.keys:
        return _owner(key, rules)
    if key is None:
        return LOCAL if rules.loopback else None
    return hmac.new(secret, key.encode("latin-1"), hashlib.sha256).hexdigest()


def _owner(key: str | None, rules: Rules) -> str:
    """The tenant of a configured key. Every key is compared, digest with digest, so that time tells nothing."""
    sent = hashlib.sha256((key or "").encode("latin-1")).digest()
    owner = None
    for tenant, known in rules.keys:
        if hmac.compare_digest(sent, hashlib.sha256(known.encode()).digest()):
            owner = tenant
    if key is None or owner is None:
        raise Unauthorized("no known key was sent; send one of auth.keys as `Authorization: Bearer …`")
    return owner


@lru_cache(maxsize=4_096)
def fingerprint_key(secret: bytes, tenant: str) -> bytes:
    """The key of a tenant's message fingerprints, so that equal messages of two tenants never look equal."""
    return hmac.new(secret, b"fingerprint\0" + tenant.encode(), hashlib.sha256).digest()
