"""Signed names: a token by which one user of an application can speak for one resource, and for one thread of it if it says so.

A JSON Web Token (RFC 7519) signed with HMAC-SHA256, so that any application's own library can make one. Read here and not by a
library, because one algorithm and five claims are all there is to read, and every choice a library leaves open is a way around it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from om_proxy.errors import Unauthorized

LEAST_SECRET = 32  # bytes: RFC 7518 3.2 asks for as many as the digest has
_HEADER = {"alg": "HS256", "typ": "JWT"}
_CLOCKS_APART = 30.0  # seconds the clocks of two machines may differ


class Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a token says. Claims it does not know (`iat`, `iss`) change nothing."""

    resource: str
    exp: float  # unix seconds, when it ends
    thread: str | None = None  # None: any thread of the resource
    tenant: str | None = None  # whose user it is; must be there where `auth.keys` names tenants
    nbf: float = -math.inf  # unix seconds before which it does not count (RFC 7519 4.1.5)


class _Header(msgspec.Struct, frozen=True):
    alg: str
    crit: object = None  # extensions that must be understood; none is


_header = msgspec.json.Decoder(_Header)
_claims = msgspec.json.Decoder(Claims)


def signed(claims: Claims, secret: bytes) -> str:
    """The token."""
    text = f"{_encoded(msgspec.json.encode(_HEADER))}.{_encoded(msgspec.json.encode(claims))}"
    return f"{text}.{_signature(text, secret)}"


def verified(token: str, secret: bytes, *, tenant: str | None) -> Claims:
    """What a token says, its times still to be checked (`in_time`, `is_too_early`). Raises Unauthorized for one that is not ours, or
    for another tenant."""
    text, _, signature = token.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(text, secret).encode()):
        raise Unauthorized("x-om-token is not signed with auth.token_secret; have your application make a new one")
    try:
        head, _, body = text.partition(".")
        header, claims = _header.decode(_decoded(head)), _claims.decode(_decoded(body))
    except (ValueError, RecursionError) as exc:
        raise Unauthorized(
            "x-om-token must be a JSON Web Token with the claims resource and exp, all times as numbers"
        ) from exc
    if header.alg != _HEADER["alg"] or header.crit is not None:
        raise Unauthorized("x-om-token must be signed with HS256, without `crit`")
    if claims.tenant != tenant:
        raise Unauthorized(
            "x-om-token is for another tenant; its claim `tenant` must be that of the key it is sent with"
        )
    return claims


def in_time(exp: float, now: float) -> bool:
    """Whether a token that ends at `exp` still counts."""
    return now < exp + _CLOCKS_APART


def is_too_early(nbf: float, now: float) -> bool:
    """Whether a token that counts from `nbf` on does not count yet."""
    return now < nbf - _CLOCKS_APART


def _signature(text: str, secret: bytes) -> str:
    return _encoded(hmac.new(secret, text.encode(), hashlib.sha256).digest())


def _encoded(value: bytes) -> str:
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
