"""User tokens, against tokens made by hand, as any application's library makes them."""

from __future__ import annotations

import base64
import hmac
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import Unauthorized
from om_proxy.settings.identity.user_token import (
    MAX_TOKEN_CHARS,
    Claims,
    is_still_valid,
    is_too_early,
    is_usable_secret,
    sign_claims,
    verify_token,
)

SECRET = b"0123456789abcdef0123456789abcdef"
GOOD: dict[str, Any] = {"resource": "ada", "exp": 1_700_000_000}


def part(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def token(
    body: object = GOOD, header: object = None, secret: bytes = SECRET, digest: str = "sha256"
) -> str:
    text = f"{part(header or {'alg': 'HS256', 'typ': 'JWT'})}.{part(body)}"
    return f"{text}.{part(hmac.new(secret, text.encode(), digest).digest())}"


def test_any_library_s_token() -> None:
    """Whole and fractional times, unknown claims, and the tenant where one is expected."""
    full = {"iat": 1, "iss": "app", "resource": "ada", "thread": "t", "tenant": "acme", "exp": 1.5}
    assert verify_token(token(full), SECRET, tenant="acme") == Claims("ada", 1.5, "t", "acme")
    assert verify_token(token(), SECRET, tenant=None) == Claims("ada", 1_700_000_000)


def test_what_is_signed_is_verified() -> None:
    """A token of our own is such a token too, and reads the same with any library."""
    assert sign_claims(Claims("ada", 1_700_000_000), SECRET) == (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJyZXNvdXJjZSI6ImFkYSIsImV4cCI6MTcwMDAwMDAwMH0"
        ".DBYo394SzNV1WCEO9FrCw6iPhjvA2jy7QznV07n8TXc"
    )
    claims = Claims("ada", 12.0, thread="t/1", tenant="acme")
    assert verify_token(sign_claims(claims, SECRET), SECRET, tenant="acme") == claims
    assert sign_claims(Claims("ada", 1_700_000_000), SECRET).count(".") == 2


WRONG: dict[str, tuple[str, str | None]] = {
    "another secret": (token(secret=b"x" * 32), None),
    "alg none": (token(header={"alg": "none"}), None),
    "unsigned": (token(header={"alg": "none"}).rpartition(".")[0] + ".", None),
    "another algorithm": (token(header={"alg": "HS512"}, digest="sha512"), None),
    "an algorithm that is only said": (token(header={"alg": "RS256"}), None),
    "an extension": (token(header={"alg": "HS256", "crit": ["b64"]}), None),
    "an extension that a library knows": (
        token(header={"alg": "HS256", "crit": ["b64"], "b64": True}),
        None,
    ),
    "claims beside the token": (
        token(b"", header={"alg": "HS256", "crit": ["b64"], "b64": False}),
        None,
    ),
    "no algorithm": (token(header={"typ": "JWT"}), None),
    "a list of algorithms": (token(header={"alg": ["HS256"]}), None),
    "a header that is a list": (token(header=["HS256"]), None),
    "a header with no number": (token(header=b'{"alg":"HS256","x":NaN}'), None),
    "a header in UTF-16": (token(header='{"alg":"HS256"}'.encode("utf-16")), None),
    "claims in UTF-16": (token(json.dumps(GOOD).encode("utf-16")), None),
    "claims with no number": (token(b'{"resource":"ada","exp":NaN}'), None),
    "an end beyond numbers": (token(b'{"resource":"ada","exp":1e999}'), None),
    "a deep header": (token(header=b"[" * 5_000), None),
    "a padded signature": (token() + "=", None),
    "a signature beyond its alphabet": (token()[:-1] + "+", None),
    "no end": (token({"resource": "ada"}), None),
    "no resource": (token({"exp": 1}), None),
    "a resource that is no text": (token({"resource": ["ada"], "exp": 1}), None),
    "an end that is no time": (token({"resource": "ada", "exp": "never"}), None),
    "an end in disguise": (token({"resource": "ada", "exp": True}), None),
    "a beginning that is no time": (token(GOOD | {"nbf": "soon"}), None),
    "a beginning that is nothing": (token(GOOD | {"nbf": None}), None),
    "a beginning in disguise": (token(GOOD | {"nbf": True}), None),
    "no JSON": (token(b"{"), None),
    "deep": (token(b"[" * 100_000), None),
    "no tenant": (token(), "acme"),
    "another tenant": (token(GOOD | {"tenant": "globex"}), "acme"),
    "a tenant where there are none": (token(GOOD | {"tenant": "acme"}), None),
    "two parts": (token().rpartition(".")[0], None),
    "four parts": (token() + ".x", None),
    "nothing": ("", None),
    "dots": ("..", None),
    "beyond ASCII": ("é.é.é", None),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_tokens_are_refused(name: str) -> None:
    """Other tokens are refused, and the error repeats nothing of them."""
    text, tenant = WRONG[name]
    with pytest.raises(Unauthorized, match="x-om-token") as caught:
        verify_token(text, SECRET, tenant=tenant)
    assert "ada" not in str(caught.value)


@pytest.mark.parametrize("position", range(0, len(token()), 5))
def test_no_character_can_be_changed(position: int) -> None:
    """No character of header, claims or signature can be changed, not even the spare bits of the
    last one."""
    good = token()
    changed = good[:position] + ("A" if good[position] != "A" else "B") + good[position + 1 :]
    with pytest.raises(Unauthorized):
        verify_token(changed, SECRET, tenant=None)
    spare = good[:-1] + {c: chr(ord(c) + 1) for c in good}[good[-1]]
    with pytest.raises(Unauthorized):
        verify_token(spare, SECRET, tenant=None)


def test_the_last_of_two_members_counts() -> None:
    """Of two members with one name the last one counts, in claims and header (RFC 7519 4 leaves it
    open), so that a signed text has one meaning."""
    assert verify_token(
        token(b'{"resource":"eve","exp":1,"resource":"ada"}'), SECRET, tenant=None
    ) == Claims("ada", 1)
    assert (
        verify_token(token(header=b'{"alg":"none","alg":"HS256"}'), SECRET, tenant=None).resource
        == "ada"
    )
    with pytest.raises(Unauthorized):
        verify_token(token(header=b'{"alg":"HS256","alg":"none"}'), SECRET, tenant=None)


def test_a_token_has_a_maximum_length() -> None:
    """A longer token is not read at all, because its parts are decoded before its signature is
    verified."""
    spare = MAX_TOKEN_CHARS - len(token())
    within, beyond = (token(GOOD | {"more": "x" * length}) for length in (spare // 2, spare))
    assert len(within) <= MAX_TOKEN_CHARS < len(beyond)
    assert verify_token(within, SECRET, tenant=None).resource == "ada"
    with pytest.raises(Unauthorized, match=str(MAX_TOKEN_CHARS)):
        verify_token(beyond, SECRET, tenant=None)


@given(
    st.text()
    | st.tuples(st.binary(), st.binary()).map(lambda parts: f"{part(parts[0])}.{part(parts[1])}.x")
)
def test_any_other_text_is_refused(text: str) -> None:
    """Any text is refused with Unauthorized."""
    with pytest.raises(Unauthorized):
        verify_token(text, SECRET, tenant=None)


@given(st.binary(), st.binary())
def test_any_signed_bytes_are_read_or_refused(header: bytes, body: bytes) -> None:
    """Bytes are read or refused, even if the holder of the secret signed them."""
    for text in (token(body), token(header=header)):
        with suppress(Unauthorized):
            assert isinstance(verify_token(text, SECRET, tenant=None), Claims)


PEM = b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 64 + b"\n-----END PUBLIC KEY-----"
UNUSABLE = [b"x" * 31, PEM, b"ssh-rsa " + b"A" * 64, b'{"kty":"oct","k":"' + b"A" * 64 + b'"}']


@pytest.mark.parametrize("secret", UNUSABLE, ids=["short", "PEM", "SSH", "JWK"])
def test_a_key_of_another_kind_is_no_secret(secret: bytes) -> None:
    """An asymmetric key may be public, and then anyone could sign. Such a secret is refused in the
    settings, and no token is valid with it."""
    assert is_usable_secret(SECRET)
    assert not is_usable_secret(secret)
    with pytest.raises(Unauthorized):
        verify_token(token(secret=secret), secret, tenant=None)


def test_its_beginning() -> None:
    """A token is valid half a minute before its `nbf`, and at once without one."""
    assert verify_token(token(GOOD | {"nbf": 1.5}), SECRET, tenant=None) == Claims(
        "ada", 1_700_000_000, nbf=1.5
    )
    assert is_too_early(100.0, 69.9)
    assert not is_too_early(100.0, 70.0)
    assert not is_too_early(Claims("ada", 1.0).nbf, 0.0)


def test_its_end() -> None:
    """A token is valid half a minute after its `exp`, because the clocks of two machines differ."""
    assert is_still_valid(100.0, 129.0)
    assert not is_still_valid(100.0, 130.0)


@pytest.mark.parametrize(
    ("aud", "audience", "is_taken"),
    [
        (None, None, True),
        ("om", None, False),
        (["om"], None, False),
        ([], None, False),
        ("", None, False),
        (None, "om", False),
        ("om", "om", True),
        (["other", "om"], "om", True),
        ("om2", "om", False),
        ([], "om", False),
        ("o", "om", False),
        (7, "om", False),
        ([7, "om"], "om", False),
        ({"om": 1}, "om", False),
    ],
)
def test_a_token_for_another_audience(aud: object, audience: str | None, is_taken: bool) -> None:
    """A token with `aud` must name the configured one (RFC 7519 4.1.3); PyJWT refuses as much."""
    made = token(GOOD if aud is None else {**GOOD, "aud": aud})
    if is_taken:
        assert verify_token(made, SECRET, tenant=None, audience=audience).resource == "ada"
    else:
        with pytest.raises(Unauthorized):
            verify_token(made, SECRET, tenant=None, audience=audience)
