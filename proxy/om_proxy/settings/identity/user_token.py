"""Sign and verify X-OM-Token. It gives one user of an application access to one resource, or to one
thread of the resource if the token names one.

A token is a JSON Web Token (RFC 7519) signed with HMAC-SHA256, so any application can make one with
its own library. PyJWT signs and verifies. This module closes what PyJWT leaves open: PyJWT accepts
a padded signature for the same token, reads a header in UTF-16 or with `NaN`, understands the
extension `b64`, and reads a token of any length before it checks the signature. PyJWT would also
read the clock, so the two times are compared here.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from om_proxy.common.errors import Unauthorized

if TYPE_CHECKING:
    from jwt import PyJWS

MIN_SECRET_BYTES = 32  # RFC 7518 3.2 asks for as many as the digest has
# a token's parts are decoded before its signature is checked, at 50 ns a character
MAX_TOKEN_CHARS = 8_192
_SIGNATURE_ALGORITHM = "HS256"
_MAX_CLOCK_SKEW_S = 30.0  # between two machines
_UNREADABLE_MESSAGE = (
    "x-om-token must be a JSON Web Token with the claims resource and exp, all times as numbers"
)
_OTHER_SIGNATURE_MESSAGE = "x-om-token must be signed with HS256, without `crit`"


class Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims of a token. Claims that are not listed here (`iat`, `iss`) change nothing."""

    resource: str
    exp: float  # unix seconds, when it ends
    thread: str | None = None  # None: any thread of the resource
    tenant: str | None = None  # the user's tenant; required if `auth.keys` names tenants
    aud: str | tuple[str, ...] | None = None  # whom the token is for (RFC 7519 4.1.3)
    nbf: float = -math.inf  # unix seconds before which it is not valid (RFC 7519 4.1.5)


class _TokenHeader(msgspec.Struct, frozen=True):
    """The part of a token's header that PyJWT does not check."""

    crit: object = None  # extensions that a reader must understand; this one understands none


_header_decoder = msgspec.json.Decoder(_TokenHeader)
_claims_decoder = msgspec.json.Decoder(Claims)


def sign_claims(claims: Claims, secret: bytes) -> str:
    """Make the token with these claims."""
    payload = msgspec.json.encode(claims)
    return _load_signer().encode(payload, secret, algorithm=_SIGNATURE_ALGORITHM)


def is_usable_secret(secret: bytes) -> bool:
    """Return whether PyJWT signs with this secret. It refuses a secret shorter than
    `MIN_SECRET_BYTES`, and a key in PEM, SSH or JWK form."""
    from jwt import InvalidKeyError  # noqa: PLC0415 - see _load_signer

    try:
        _load_signer().encode(b"", secret, algorithm=_SIGNATURE_ALGORITHM)
    except InvalidKeyError:
        return False
    return True


def verify_token(
    token: str, secret: bytes, *, tenant: str | None, audience: str | None = None
) -> Claims:
    """Return the claims of a token. Raises Unauthorized for a token that another key signed, or
    that is for another tenant or audience, by the rule of PyJWT and RFC 7519: a token with `aud`
    must name this server's, and where one is configured, a token must have it. The caller checks the token's times (`is_still_valid`,
    `is_too_early`)."""
    payload = _verify_signature(token, secret)
    try:
        header = _header_decoder.decode(urlsafe_b64decode(_add_padding(token.partition(".")[0])))
        claims = _claims_decoder.decode(payload)
    except (ValueError, RecursionError) as exc:
        raise Unauthorized(_UNREADABLE_MESSAGE, "token") from exc
    if header.crit is not None:
        raise Unauthorized(_OTHER_SIGNATURE_MESSAGE, "token")
    if claims.tenant != tenant:
        raise Unauthorized(
            "x-om-token is for another tenant;"
            " its claim `tenant` must be that of the key it is sent with",
            "token",
        )
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud or ()
    if (claims.aud is not None or audience is not None) and audience not in audiences:
        raise Unauthorized(
            "x-om-token is for another audience; its claim `aud` must name auth.token_audience, or "
            "be left out where that is not set",
            "token",
        )
    return claims


def _verify_signature(token: str, secret: bytes) -> bytes:
    """Return the bytes of the claims of a token. Raises Unauthorized unless the secret signed the
    token."""
    from jwt import (  # noqa: PLC0415 - see _load_signer
        InvalidAlgorithmError,
        InvalidSignatureError,
        PyJWTError,
    )

    if len(token) > MAX_TOKEN_CHARS:
        raise Unauthorized(f"x-om-token must have at most {MAX_TOKEN_CHARS} characters", "token")
    try:
        if token.endswith("="):
            raise InvalidSignatureError
        payload: bytes = _load_signer().decode(token, secret, algorithms=[_SIGNATURE_ALGORITHM])
    except InvalidAlgorithmError as exc:
        raise Unauthorized(_OTHER_SIGNATURE_MESSAGE, "token") from exc
    except InvalidSignatureError as exc:
        raise Unauthorized(
            "x-om-token is not signed with auth.token_secret; have your application make a new one",
            "token",
        ) from exc
    except (PyJWTError, ValueError) as exc:
        raise Unauthorized(_UNREADABLE_MESSAGE, "token") from exc
    return payload


@cache
def _load_signer() -> PyJWS:
    """Return a signer that accepts only this algorithm, not `none`."""
    from jwt import PyJWS  # noqa: PLC0415 - 25 to 80 ms, needed only where a secret is set

    return PyJWS(algorithms=[_SIGNATURE_ALGORITHM], options={"enforce_minimum_key_length": True})


def is_still_valid(exp: float, now: float) -> bool:
    """Return whether a token that ends at `exp` is still valid."""
    return now < exp + _MAX_CLOCK_SKEW_S


def is_too_early(nbf: float, now: float) -> bool:
    """Return whether a token that is valid from `nbf` on is not valid yet."""
    return now < nbf - _MAX_CLOCK_SKEW_S


def _add_padding(text: str) -> str:
    return text + "=" * (-len(text) % 4)
