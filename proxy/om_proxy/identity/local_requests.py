"""Decide whether a request comes from a program of this machine, so that it needs no credential."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from om_proxy.identity.header_values import HTTP_WHITESPACE, ValuesByName
from om_proxy.identity.identity_rules import FORWARDING_HEADERS, SITE_HEADER

# the origin of a page that a web server sent
_WEB_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?")
_OWN_SITES = ("same-origin", "same-site", "none")  # `none`: the user typed the address
# RFC 7239
_FORWARDED_FOR = re.compile(r"\bfor=\"?(\[[^\]]{0,64}\][^;,\"]*|[^;,\"]*)", re.IGNORECASE)


def is_local_request(values_by_name: ValuesByName) -> bool:
    """Return whether a program of this machine sent the request, and no proxy forwarded it for
    another machine. The caller already knows that the connection came over loopback."""
    return not (_is_cross_site(values_by_name) or _is_forwarded(values_by_name))


def is_loopback_host(host: str) -> bool:
    """Return whether a Host header, with or without a port, names loopback."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
    if not all(map(_is_own_host, values_by_name.get("host", []))):
        return True
    return bool(origins) and not _is_loopback_origin(origins)


def _is_own_host(host: str) -> bool:
    """Return whether a Host header names this machine. Some programs send 0.0.0.0, which no host
    name can be made to resolve to."""
    return is_loopback_host(host) or host.partition(":")[0] == "0.0.0.0"  # noqa: S104 - compared


def _is_loopback_origin(origins: Sequence[str]) -> bool:
    """Return whether there is exactly one origin, and it is on this machine. `null` and unreadable
    origins are not."""
    origin = _WEB_ORIGIN.fullmatch(origins[0]) if len(origins) == 1 else None
    return origin is not None and is_loopback_host(origin[1])


def _is_forwarded(values_by_name: ValuesByName) -> bool:
    """Return whether a proxy on this machine forwards the request of another machine, because all
    requests of such a proxy come over loopback. A client that lies in a forwarding header only
    loses its access."""
    *address_lists, forwarded = (
        ",".join(values_by_name.get(name, [])) for name in FORWARDING_HEADERS
    )
    addresses = [address for value in address_lists if value for address in value.split(",")]
    addresses += _FORWARDED_FOR.findall(forwarded)
    return not all(map(_is_loopback_address, addresses))


def _is_loopback_address(address: str) -> bool:
    address = address.strip(HTTP_WHITESPACE)
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        # an address with a port or in brackets; an obfuscated name is not loopback
        return is_loopback_host(address)
