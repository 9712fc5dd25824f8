"""Who is asking: tenant, resource and thread of a request, from its headers alone
(docs/spec/behaviour.md#identity).

The tenant comes from the verified credential and from nothing else; whatever is in doubt gets no memory (fail closed).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from om_proxy.errors import BadRequest, Unauthorized
from om_proxy.memory import user_token
from om_proxy.memory.model import Key
from om_proxy.memory.naming import MAX_NAME_BYTES, PLAIN_CHARACTERS, canonical_name, decode_name
from om_proxy.memory.sessions import CLIENT_SESSIONS, Session, find_session

Headers = Iterable[tuple[bytes, bytes]]  # names in lower case, as ASGI gives them
Mode = Literal["on", "read", "write", "off"]
History = Literal["auto", "full", "window", "new"]  # X-OM-History: what the sent messages are
Scope = Literal["thread", "resource"]  # X-OM-Scope: how far the memory reaches

_ZONE = re.compile(r"[\w+-]{1,32}(?:/[\w+-]{1,32}){0,2}", re.ASCII)
_BLANKS = " \t"  # white space to HTTP (RFC 9110 5.6.3); left to itself, `strip` would take U+0085 and U+00A0 with it
_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?")  # of a page that a web server gave
_SITE_HEADER = "sec-fetch-site"  # by which a browser tells whose page asks (W3C Fetch Metadata)
_OWN_SITES = ("same-origin", "same-site", "none")  # `none`: its user asks, by the address bar
_FORWARDING_HEADERS = ("x-forwarded-for", "x-real-ip", "forwarded")  # by which a proxy before us tells who asked it
_FOR = re.compile(r"\bfor=\"?(\[[^\]]{0,64}\][^;,\"]*|[^;,\"]*)", re.IGNORECASE)  # RFC 7239
PATH_THREAD, PATH_RESOURCE = (
    ":om-thread",
    ":om-resource",
)  # what the path names (edge/base_url.py); no header can be called so
_CREDENTIAL_HEADERS = ("authorization", "x-api-key", "api-key")
# a key of `auth.keys` beside the provider's own
GATEWAY_KEY_HEADERS = ("x-om-authorization", "x-memory-gateway-authorization")
_TURN_HEADERS = ("x-om-mode", "x-om-history", "x-om-task", "x-om-timezone")
_MODES: tuple[Mode, ...] = ("on", "read", "write", "off")
_HISTORIES: tuple[History, ...] = ("auto", "full", "window", "new")
_SCOPES: tuple[Scope, ...] = ("thread", "resource")
# read only where the configuration lets a request choose; else it is as any unknown header
_SCOPE_HEADER = "x-om-scope"
_VOUCHER_HEADER = "x-om-token"  # read only where there is a secret to verify it with
_Choice = TypeVar("_Choice", bound=str)
# who sent it is remembered by what a request says of itself, up to so many characters;
# keys have 200, and some tokens 2 000
MAX_REMEMBERED_CHARS = 4_096
LOCAL_TENANT = "local"  # the tenant of callers without a credential on a loopback bind


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """What the configuration says about identity. Header names are in lower case. Made once per configuration, and equal to
    itself only: `identify` finds a caller it knows by these rules, and hashing all their names takes longer than that."""

    thread_headers: tuple[str, ...] = ("x-om-thread", "x-thread-id", "x-openwebui-chat-id")
    resource_headers: tuple[str, ...] = ("x-om-resource", "x-resource-id", "x-openwebui-user-id")
    sessions: tuple[str, ...] = tuple(CLIENT_SESSIONS)  # the programs whose own sessions name threads, in order
    keys: tuple[tuple[str, str], ...] = field(
        default=(), repr=False
    )  # (tenant, key); empty: the caller's own credential keys the tenant
    loopback: bool = True  # whether the server is bound to loopback only
    memory: bool = True  # `memory.enabled`
    scope_override: bool = False  # whether a request may choose its scope
    token_secret: bytes | None = field(default=None, repr=False)  # what X-OM-Token is signed with; None: none is read
    token_required: bool = False  # whether a thread can be named with a token only
    read: frozenset[bytes] = field(init=False, repr=False, compare=False)  # the headers an identity is made of
    digests: tuple[tuple[str, bytes], ...] = field(
        init=False, repr=False, compare=False
    )  # `keys`, each key as its SHA-256

    def __post_init__(self) -> None:
        names = [
            *self.thread_headers,
            *self.resource_headers,
            PATH_THREAD,
            PATH_RESOURCE,
            *_CREDENTIAL_HEADERS,
            *_TURN_HEADERS,
        ]
        names += [header for program in self.sessions for header in CLIENT_SESSIONS[program].all]
        names += ["host", "origin", _SITE_HEADER, *_FORWARDING_HEADERS] if self.loopback and not self.keys else []
        names += [_SCOPE_HEADER] if self.scope_override else []
        names += [_VOUCHER_HEADER] if self.token_secret else []
        names += GATEWAY_KEY_HEADERS if self.keys else []
        object.__setattr__(self, "read", frozenset(n.encode("latin-1") for n in names))
        object.__setattr__(self, "digests", tuple((tenant, _digest(key.encode())) for tenant, key in self.keys))


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's identity. Without a `key` there is no memory, and `reason` says why in one word of the receipt."""

    key: Key | None
    tenant: str | None
    mode: Mode = "on"
    reason: str | None = None
    history: History = "auto"
    timezone: str | None = None  # IANA name
    scope: Scope | None = None  # the one the request asked for, where it may; None: the configured one holds
    names_resource: bool = False  # else `key.resource` is the thread itself, and resource scope cannot be meant


class _Names(NamedTuple):
    """What a request calls its thread and resource; the token that vouches for them counts `since` and `until`, in unix seconds."""

    thread: str | None
    resource: str | None = None
    until: float | None = None
    since: float = -math.inf


def identify(headers: Headers, rules: Rules, secret: bytes, now: float = math.inf) -> Caller:
    """The caller; raises BadRequest for a header that cannot be meant, Unauthorized for a key or token that does not fit.

    `now`: unix seconds. Who is not told the time takes every token for one that has ended.
    """
    read = tuple([h for h in headers if h[0] in rules.read])  # lists: generators take twice as long
    known = _identified if sum([len(value) for _, value in read]) <= MAX_REMEMBERED_CHARS else _identified.__wrapped__
    caller, names = known(read, rules, secret)
    if names.until is not None:
        _check_times(names.until, names.since, now)
    return caller


def _check_times(until: float, since: float, now: float) -> None:
    if not user_token.in_time(until, now):
        raise Unauthorized(f"{_VOUCHER_HEADER} has ended; have your application make a new one")
    if user_token.is_too_early(since, now):
        raise Unauthorized(f"{_VOUCHER_HEADER} does not count yet (`nbf`); send it later, or set the clocks right")


@lru_cache(
    maxsize=4_096
)  # 25 µs, and callers come again; it holds credentials, so it is bounded, in bytes too, and in memory only
def _identified(headers: tuple[tuple[bytes, bytes], ...], rules: Rules, secret: bytes) -> tuple[Caller, _Names]:
    named = _by_name(headers)
    tenant = _tenant(named, rules, secret)
    names = _names(named, rules, tenant)
    return _caller(named, rules, tenant, names), names


def _caller(named: Mapping[str, list[str]], rules: Rules, tenant: str | None, names: _Names) -> Caller:
    thread, resource = names.thread, names.resource
    if thread is None:
        return Caller(None, tenant, "on", "no-thread")  # passes through, whatever its other headers say
    mode: Mode = _choice(named, "x-om-mode", _MODES) or "on"
    history: History = _choice(named, "x-om-history", _HISTORIES) or "auto"
    timezone = _timezone(named)
    scope = _choice(named, _SCOPE_HEADER, _SCOPES)
    if tenant is None:
        return Caller(None, None, mode, "no-credential")
    if not rules.memory:
        return Caller(None, tenant, mode, "disabled")
    if mode == "off":
        return Caller(None, tenant, mode, "mode-off")
    if any(_value(task) for task in named.get("x-om-task", [])):
        return Caller(None, tenant, mode, "side-request")
    key = Key(tenant, resource or thread, thread)
    return Caller(key, tenant, mode, None, history, timezone, scope, names_resource=resource is not None)


def tenant(headers: Headers, rules: Rules, secret: bytes) -> str | None:
    """Whose the caller's credential is; None for a caller without one where it needs one. Raises like `identify`."""
    return _tenant(_by_name(h for h in headers if h[0] in rules.read), rules, secret)


def identify_off_route(headers: Headers, rules: Rules, secret: bytes, now: float) -> Caller | None:
    """The caller on a route that has no memory; None where the request names no thread. Raises nothing: what the names say there
    matters to nobody but the receipt."""
    try:
        caller = identify(headers, rules, secret, now)
    except (BadRequest, Unauthorized):
        named = _by_name(h for h in headers if h[0] in rules.read)
        return Caller(None, None) if _names_thread(named, rules) else None
    return None if caller.reason == "no-thread" else caller


def _names_thread(named: Mapping[str, list[str]], rules: Rules) -> bool:
    """Whether a request means to name a thread, well or badly."""
    headers = (*rules.thread_headers, PATH_THREAD, *((_VOUCHER_HEADER,) if rules.token_secret else ()))
    if any(_value(value) for name in headers for value in named.get(name, [])):
        return True
    return not rules.token_required and find_session(named, rules.sessions) is not None


def admit(headers: Headers, rules: Rules) -> None:
    """Raise Unauthorized unless the caller may use the server at all: what every route asks, memory or not."""
    if rules.keys:
        _owner(_key_to_us(_by_name(headers)), rules)


def nameable(name: str) -> bool:
    """Whether a thread or resource can be called so."""
    return canonical_name(name) is not None


def brings_own(headers: Headers, rules: Rules) -> bool:
    """Whether a request's `Authorization` is meant for the model server, its key to us standing beside it.

    Never true of a key of ours: sent to a model server, it would open our memories to whoever runs that.
    """
    named = _by_name(headers) if rules.keys else {}
    own = _credential(named, _CREDENTIAL_HEADERS)
    return own is not None and _credential(named, GATEWAY_KEY_HEADERS) is not None and _tenant_of(own, rules) is None


def _names(named: Mapping[str, list[str]], rules: Rules, tenant: str | None) -> _Names:
    thread = _first(named, (*rules.thread_headers, PATH_THREAD))  # headers win over the path
    session = find_session(named, rules.sessions)
    if rules.token_secret and (token := _only(named, _VOUCHER_HEADER)):
        claims = user_token.verified(token, rules.token_secret, tenant=tenant if rules.keys else None)
        return _vouched(thread, _first(named, (*rules.resource_headers, PATH_RESOURCE)), claims, session)
    if rules.token_required:
        if thread is None:  # nor does a session count, which its client names without being asked to
            return _Names(None)
        raise Unauthorized(f"a thread can be named here with {_VOUCHER_HEADER} only; have your application make one")
    return _in_session(thread, _first(named, (*rules.resource_headers, PATH_RESOURCE)), session)


def _in_session(thread: str | None, resource: str | None, session: Session | None) -> _Names:
    """The names with those of the client's own session where there are no others.

    A sub-agent's conversation is never the named thread, which is its parent's: in these clients such a header is the same for all.
    """
    if session is None:
        return _Names(thread, resource if thread else None)
    if thread is None:
        return _Names(session.thread, resource or session.resource)
    if not session.is_sub_agent or thread == session.thread:  # one header may be configured as an alias beside it
        return _Names(thread, resource)
    own = f"{thread}/{session.thread}"
    return _Names(own, resource) if nameable(own) else _Names(None)


def _vouched(thread: str | None, resource: str | None, claims: user_token.Claims, session: Session | None) -> _Names:
    """What the token names; headers may repeat it, and choose where it leaves a choice."""
    owner, talk = canonical_name(claims.resource), canonical_name(claims.thread or "")
    if owner is None or (talk is None and claims.thread is not None):
        raise Unauthorized(
            f"{_VOUCHER_HEADER} names what no header could name: 1 to {MAX_NAME_BYTES} bytes of printable UTF-8"
        )
    said = ((resource, owner), (thread, talk))
    if any(header is not None and claimed not in (None, header) for header, claimed in said):
        raise Unauthorized(f"{_VOUCHER_HEADER} does not speak for the thread or resource that the headers name")
    if talk is not None:
        names = _Names(None if session and session.is_sub_agent else talk)  # it speaks for this thread alone
    else:
        names = _in_session(thread, owner, session)
    return _Names(names.thread, owner, claims.exp, claims.nbf)


def _by_name(headers: Headers) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for name, value in headers:
        named.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return named


def _first(named: Mapping[str, list[str]], names: Sequence[str]) -> str | None:
    """The first usable value in the order of the names. All present ones are checked: a bad one is never passed over in silence."""
    found = None
    for name in names:
        value = _only(named, name)
        if not value:
            continue
        read = decode_name(value)
        if read is None:
            raise BadRequest(
                f"header {name} must be 1 to {MAX_NAME_BYTES} of the characters {PLAIN_CHARACTERS}; percent-encode others, as UTF-8",
                "om_bad_header",
                name,
            )
        found = found or _value(read)
    return found or None


def _only(named: Mapping[str, list[str]], name: str) -> str:
    """The value of a header that can be meant once; empty where it is absent."""
    values = named.get(name, [])
    if len(values) > 1:
        raise BadRequest(f"header {name} was sent {len(values)} times; send it once", "om_bad_header", name)
    return _value(values[0]) if values else ""


def _value(value: str) -> str:
    """What a header says, without the blanks around it; a template that nobody filled in says nothing."""
    value = value.strip(_BLANKS)
    opened = value.find("{{")  # sought so, and not by a pattern, which would look for the end again at every brace
    return "" if opened >= 0 and value.find("}}", opened + 2) >= 0 else value


def _choice(named: Mapping[str, list[str]], name: str, allowed: Sequence[_Choice]) -> _Choice | None:
    """The word that was said; None for none. Raises BadRequest for one that is not allowed."""
    values = [value.strip(_BLANKS).lower() for value in named.get(name, [])]
    if not any(values):
        return None
    chosen = next((a for a in allowed if a == values[0]), None)
    if chosen is None or len(values) > 1:
        raise BadRequest(f"header {name} must be one of: {', '.join(allowed)}", "om_bad_header", name)
    return chosen


def _timezone(named: Mapping[str, list[str]]) -> str | None:
    name = _value(",".join(named.get("x-om-timezone", [])))
    if not name:
        return None
    try:
        # it looks for each segment as for a package in the last one
        return ZoneInfo(name if _ZONE.fullmatch(name) else "").key
    except (OSError, ValueError, KeyError) as exc:
        raise BadRequest(
            "header x-om-timezone must be an IANA time zone, as in Europe/Berlin", "om_bad_header", "x-om-timezone"
        ) from exc


def _credential(named: Mapping[str, list[str]], names: Sequence[str]) -> str | None:
    """The credential in these headers without its scheme; raises BadRequest when two carry different ones (CVE-2026-45339)."""
    found = {bare for name in names for value in named.get(name, []) if (bare := _bare(value))}
    if len(found) > 1:
        raise BadRequest(f"two different credentials were sent ({', '.join(names)}); send one", "om_two_credentials")
    return next(iter(found), None)


def _bare(value: str) -> str:
    value = value.strip(_BLANKS)
    scheme, _, rest = value.partition(" ")
    return rest.strip(_BLANKS) if scheme.lower() == "bearer" else value


def _key_to_us(named: Mapping[str, list[str]]) -> str | None:
    """What `auth.keys` is asked about: the key sent to us by name, else the request's one credential."""
    own = _credential(named, _CREDENTIAL_HEADERS)
    return _credential(named, GATEWAY_KEY_HEADERS) or own


def _tenant(named: Mapping[str, list[str]], rules: Rules, secret: bytes) -> str | None:
    if rules.keys:
        return _owner(_key_to_us(named), rules)
    key = _credential(named, _CREDENTIAL_HEADERS)
    if key is None:
        return LOCAL_TENANT if rules.loopback and not (_foreign(named) or _forwarded(named)) else None
    return hmac.new(secret, key.encode("latin-1"), hashlib.sha256).hexdigest()


def _foreign(named: Mapping[str, list[str]]) -> bool:
    """Whether a web page asks that is of another site, or that knows us by a name which only resolves here (DNS rebinding): what
    its visitor's own programs may have, it may not. A browser tells the origin with every POST, and with none that a link or an
    image asks for; a program need not tell it. So the host counts by itself, and so does what a
    browser says of the site that asks."""
    origins, hosts, sites = (named.get(name, []) for name in ("origin", "host", _SITE_HEADER))
    if any(site.strip(_BLANKS).lower() not in _OWN_SITES for site in sites):
        return True
    return not all(map(_is_own_address, hosts)) or (bool(origins) and not _served_here(origins))


def _is_own_address(host: str) -> bool:
    """Of a Host header. 0.0.0.0 is how some programs spell this machine; no name can be made to resolve to it."""
    return is_loopback(host) or host.partition(":")[0] == "0.0.0.0"  # noqa: S104 - compared, not bound


def _forwarded(named: Mapping[str, list[str]]) -> bool:
    """Whether a proxy on this machine says that it asks for somebody on another: all that it serves come from loopback. Who lies with
    such a header loses by it only."""
    *plain, standard = (",".join(named.get(name, [])) for name in _FORWARDING_HEADERS)
    told = [address for value in plain if value for address in value.split(",")] + _FOR.findall(standard)
    return not all(map(_is_here, told))


def _is_here(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip(_BLANKS)).is_loopback
    except ValueError:
        return is_loopback(address.strip(_BLANKS))  # with a port, or in brackets; a name that hides one is none


def _served_here(origins: Sequence[str]) -> bool:
    """Whether this is one origin, and on this machine; `null` and what cannot be read are not."""
    origin = _ORIGIN.fullmatch(origins[0]) if len(origins) == 1 else None
    return origin is not None and is_loopback(origin[1])


def is_loopback(host: str) -> bool:
    """Of a Host header, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _owner(key: str | None, rules: Rules) -> str:
    owner = _tenant_of(key, rules) if key else None
    if owner is None:
        raise Unauthorized("no known key was sent; send one of auth.keys as `Authorization: Bearer …`")
    return owner


def _tenant_of(key: str, rules: Rules) -> str | None:
    """The tenant of a configured key. Every key is compared, digest with digest, so that time tells nothing."""
    sent = _digest(key.encode("latin-1"))
    owner = None
    for tenant, known in rules.digests:
        if hmac.compare_digest(sent, known):
            owner = tenant
    return owner


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@lru_cache(maxsize=4_096)
def fingerprint_key(secret: bytes, tenant: str) -> bytes:
    """The key of a tenant's message fingerprints, so that equal messages of two tenants never look equal."""
    return hmac.new(secret, b"fingerprint\0" + tenant.encode(), hashlib.sha256).digest()


def seed(secret: bytes) -> int:
    """64 bits for hashes that only this server compares."""
    return int.from_bytes(hmac.new(secret, b"seed", hashlib.sha256).digest()[:8], "big")


def label(secret: bytes, key: Key) -> str:
    """What a thread is called where its resource's other threads can read it: 16 hexadecimal digits that tell nothing."""
    return hmac.new(secret, b"label\0" + "\0".join(key).encode(), hashlib.sha256).hexdigest()[:16]
