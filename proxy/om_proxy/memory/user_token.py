"""Signed names: a token by which one user of an application can speak for one resource, and for one thread of it if it says so.

A JSON Web Token (RFC 7519) signed with HMAC-SHA256, so that any application's own library can make one. PyJWT signs and verifies;
what it leaves open is closed here: it takes a padded signature for the same token, reads a header in UTF-16 or with `NaN`,
understands the extension `b64`, and reads a token of any length before it knows who signed it. It would also read the clock, so
the two times are compared here.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from om_proxy.errors import Unauthorized

if TYPE_CHECKING:
    from jwt import PyJWS

LEAST_SECRET = 32  # bytes: RFC 7518 3.2 asks for as many as the digest has
MOST_CHARACTERS = 8_192  # of a token: its parts are decoded before its signature is known, at 50 ns a character
_ALGORITHM = "HS256"
_UNREADABLE = "x-om-token must be a JSON Web Token with the claims resource and exp, all times as numbers"
_OTHER_SIGNATURE = "x-om-token must be signed with HS256, without `crit`"
_CLOCKS_APART = 30.0  # seconds the clocks of two machines may differ


class Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a token says. Claims it does not know (`iat`, `iss`) change nothing."""

    resource: str
    exp: float  # unix seconds, when it ends
    thread: str | None = None  # None: any thread of the resource
    tenant: str | None = None  # whose user it is; must be there where `auth.keys` names tenants
    nbf: float = -math.inf  # unix seconds before which it does not count (RFC 7519 4.1.5)


class _Header(msgspec.Struct, frozen=True):
    crit: object = None  # extensions that must be understood; none is


_header = msgspec.json.Decoder(_Header)
_claims = msgspec.json.Decoder(Claims)


def signed(claims: Claims, secret: bytes) -> str:
    """The token."""
    return _signatures().encode(msgspec.json.encode(claims), secret, algorithm=_ALGORITHM)


def is_usable(secret: bytes) -> bool:
    """Whether PyJWT signs with it: what is shorter than `LEAST_SECRET`, or a key in PEM, SSH or JWK form, is none."""
    from jwt import InvalidKeyError  # noqa: PLC0415 - see _signatures

    try:
        _signatures().encode(b"", secret, algorithm=_ALGORITHM)
    except InvalidKeyError:
        return False
    return True


def verified(token: str, secret: bytes, *, tenant: str | None) -> Claims:
    """What a token says, its times still to be checked (`in_time`, `is_too_early`). Raises Unauthorized for one that is not ours, or
    for another tenant."""
    payload = _payload(token, secret)
    try:
        header = _header.decode(urlsafe_b64decode(_padded(token.partition(".")[0])))
        claims = _claims.decode(payload)
    except (ValueError, RecursionError) as exc:
        raise Unauthorized(_UNREADABLE) from exc
    if header.crit is not None:
        raise Unauthorized(_OTHER_SIGNATURE)
    if claims.tenant != tenant:
        raise Unauthorized(
            "x-om-token is for another tenant; its claim `tenant` must be that of the key it is sent with"
        )
    return claims


def _payload(token: str, secret: bytes) -> bytes:
    """The bytes of the claims of a token that is signed with the secret."""
    from jwt import InvalidAlgorithmError, InvalidSignatureError, PyJWTError  # noqa: PLC0415 - see _signatures

    if len(token) > MOST_CHARACTERS:
        raise Unauthorized(f"x-om-token must have at most {MOST_CHARACTERS} characters")
    try:
        if token.endswith("="):
            raise InvalidSignatureError
        payload: bytes = _signatures().decode(token, secret, algorithms=[_ALGORITHM])
    except InvalidAlgorithmError as exc:
        raise Unauthorized(_OTHER_SIGNATURE) from exc
    except InvalidSignatureError as exc:
        raise Unauthorized(
            "x-om-token is not signed with auth.token_secret; have your application make a new one"
        ) from exc
    except (PyJWTError, ValueError) as exc:
        raise Unauthorized(_UNREADABLE) from exc
    return payload


@cache
def _signatures() -> PyJWS:
    """What knows this one algorithm, and `none` not at all."""
    from jwt import PyJWS  # noqa: PLC0415 - 25 to 80 ms, for who has a secret only

    return PyJWS(algorithms=[_ALGORITHM], options={"enforce_minimum_key_length": True})


def in_time(exp: float, now: float) -> bool:
    """Whether a token that ends at `exp` still counts."""
    return now < exp + _CLOCKS_APART


def is_too_early(nbf: float, now: float) -> bool:
    """Whether a token that counts from `nbf` on does not count yet."""
    return now < nbf - _CLOCKS_APART


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)
