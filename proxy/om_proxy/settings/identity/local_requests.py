"""Decide whether a request comes from a program of this machine, so that it needs no credential."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from om_proxy.settings.identity.header_values import HTTP_WHITESPACE, ValuesByName
from om_proxy.settings.identity.identity_rules import (
    FORWARDING_BEGINNING,
    FORWARDING_HEADERS,
    SITE_HEADER,
)

# the origin of a page that a web server sent
_WEB_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?")
_OWN_SITES = ("same-origin", "same-site", "none")  # `none`: the user typed the address
# RFC 7239
_FORWARDED_FOR = re.compile(r"\bfor=\"?(\[[^\]]{0,64}\][^;,\"]*|[^;,\"]*)", re.IGNORECASE)
_FORWARDED_HOST = re.compile(r"\bhost=\"?([^;,\"]*)", re.IGNORECASE)


def is_local_request(values_by_name: ValuesByName) -> bool:
    """Return whether a program of this machine sent the request, and no proxy forwarded it for
    another machine. The caller already knows that the connection came over loopback."""
    return not (_is_cross_site(values_by_name) or is_forwarded(values_by_name))


def is_loopback_host(host: str) -> bool:
    """Return whether a Host header, with or without a port, names loopback."""
    name = read_host_name(host)
    return name == "localhost" or _is_loopback_ip(name)


def read_host_name(host: str) -> str:
    """Return the name or the address in a Host header, in lower case and without the dot of a
    complete name; "" if it cannot be read."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_cross_site(values_by_name: ValuesByName) -> bool:
    """Return whether the request comes from a web page of another site, or of a host name that only
    resolves to this machine (DNS rebinding). The user's own programs have access; such a page has
    none.

    A browser sends the origin with every POST, but not for a link or an image, and a program need
    not send it. So the host and the site are checked too.
    """
    origins = values_by_name.get("origin", [])
    sites = values_by_name.get(SITE_HEADER, [])
    if any(site.strip(HTTP_WHITESPACE).lower() not in _OWN_SITES for site in sites):
        return True
    if not all(map(is_own_host, values_by_name.get("host", []))):
        return True
    return bool(origins) and not _is_loopback_origin(origins)


def is_from_other_site(values_by_name: ValuesByName) -> bool:
    """Return whether a browser says that a page of another site makes the request: by the site that
    it names, else by an origin that is neither on this machine nor the host that is asked."""
    sites = {site.strip(HTTP_WHITESPACE).lower() for site in values_by_name.get(SITE_HEADER, [])}
    if sites and sites <= {"same-origin", "none"}:  # a reverse proxy may change the host
        return False
    if not sites <= {*_OWN_SITES}:
        return True
    origins = values_by_name.get("origin", [])
    asked = {
        f"{scheme}://{h}" for scheme in ("http", "https") for h in values_by_name.get("host", [])
    }
    return bool(origins) and not (_is_loopback_origin(origins) or {*origins} <= asked)


def is_own_host(host: str) -> bool:
    """Return whether a Host header names this machine. Some programs send 0.0.0.0, which no host
    name can be made to resolve to."""
    return is_loopback_host(host) or read_host_name(host) == "0.0.0.0"  # noqa: S104 - compared


def _is_loopback_origin(origins: Sequence[str]) -> bool:
    """Return whether there is exactly one origin, and it is on this machine. `null` and unreadable
    origins are not."""
    origin = _WEB_ORIGIN.fullmatch(origins[0]) if len(origins) == 1 else None
    return origin is not None and is_loopback_host(origin[1])


def is_forwarded(values_by_name: ValuesByName) -> bool:
    """Return whether a proxy on this machine forwards the request of another machine, because all
    requests of such a proxy come over loopback.

    A proxy that names no client may serve anybody. A client that lies in one of these headers only
    loses its access, where the proxy itself writes them.
    """
    marks = [(name, ",".join(values_by_name[name])) for name in values_by_name if _is_mark(name)]
    addresses: list[str] = []
    hosts: list[str] = []
    for name, value in marks:
        match FORWARDING_HEADERS.get(name):
            case "address":
                addresses += value.split(",")
            case "host":
                hosts += value.split(",")
            case "both":
                addresses += _FORWARDED_FOR.findall(value)
                hosts += _FORWARDED_HOST.findall(value)
    is_from_here = bool(addresses) and all(map(_is_loopback_address, addresses))
    return bool(marks) and not (
        is_from_here and all(is_own_host(host.strip(HTTP_WHITESPACE)) for host in hosts)
    )


def _is_mark(name: str) -> bool:
    return name in FORWARDING_HEADERS or name.startswith(FORWARDING_BEGINNING)


def _is_loopback_address(address: str) -> bool:
    address = address.strip(HTTP_WHITESPACE)
    # an address with a port or in brackets; an obfuscated name is not loopback
    return _is_loopback_ip(address) or is_loopback_host(address)


def _is_loopback_ip(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    # a server that listens on both families names its IPv4 clients `::ffff:127.0.0.1`
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
