"""Find the tenant that a request's credential belongs to: no other header ever names a tenant."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence

from om_proxy.common.errors import BadRequest, Unauthorized
from om_proxy.settings.identity.header_values import (
    HTTP_WHITESPACE,
    Headers,
    ValuesByName,
    group_by_name,
)
from om_proxy.settings.identity.identity_rules import (
    CREDENTIAL_HEADERS,
    GATEWAY_KEY_HEADERS,
    IdentityRules,
)
from om_proxy.settings.identity.keyed_hashes import hash_credential, hash_key
from om_proxy.settings.identity.local_requests import is_from_other_site, is_local_request

_UNKNOWN_KEY_MESSAGE = "the request has no known key; send one of auth.keys as `Authorization: Bearer …` or `x-api-key`"
_CREDENTIAL_NAMES = frozenset(name.encode() for name in CREDENTIAL_HEADERS)
_AMBIENT_SCHEMES = ("basic", "digest", "negotiate", "ntlm")
LOCAL_TENANT = "local"  # the tenant of callers without a credential on a loopback bind


def find_tenant(headers: Headers, rules: IdentityRules, secret: bytes) -> str | None:
    """Find the tenant of the caller's credential; None if a credential is needed and absent. Raises
    the same errors as `identify`."""
    return select_tenant(group_by_name(rules.select_identity_headers(headers)), rules, secret)


def select_tenant(values_by_name: ValuesByName, rules: IdentityRules, secret: bytes) -> str | None:
    """Find the tenant as `find_tenant` does, in headers that are already grouped."""
    if rules.keys:
        return _find_key_owner(_read_gateway_key(values_by_name), rules)
    credential = _read_credential(values_by_name, CREDENTIAL_HEADERS)
    if credential is not None:
        return hash_credential(secret, credential)
    return LOCAL_TENANT if rules.loopback_only and is_local_request(values_by_name) else None


def check_access(headers: Headers, rules: IdentityRules) -> None:
    """Raise Unauthorized unless the caller may use the server at all. Every route checks this, with
    or without memory."""
    if rules.keys:
        _find_key_owner(_read_gateway_key(group_by_name(headers)), rules)


def check_one_credential(headers: Headers) -> None:
    """Raise BadRequest for two different credentials: where each of several model servers has its
    own, one of them is not for the server that this request goes to."""
    _read_credential(group_by_name(headers), CREDENTIAL_HEADERS)


def has_credential(values_by_name: ValuesByName) -> bool:
    """Return whether the caller sent a credential, known or not."""
    return bool(_list_credentials(values_by_name, CREDENTIAL_HEADERS))


def find_own_token(headers: Headers, own_tokens: Collection[bytes]) -> str | None:
    """Return the header that carries one of the proxy's own tokens in place of a key for the model
    server, with any scheme; None: no header does."""
    for name, value in headers:
        if name in _CREDENTIAL_NAMES:
            whole = value.strip(b" \t")
            without_scheme = (whole.split(None, 1) or [whole])[-1]
            for token in own_tokens:
                if hmac.compare_digest(whole, token) or hmac.compare_digest(without_scheme, token):
                    return name.decode("latin-1")
    return None


def has_provider_credential(headers: Headers, rules: IdentityRules) -> bool:
    """Return whether `Authorization` or `x-api-key` is meant for the model server, because a gateway
    key was sent in a header of its own.

    Return False for a gateway key in its place: a model server that received that key could
    read the memories that it opens.
    """
    if not rules.keys:
        return False
    values_by_name = group_by_name(headers)
    credential = _read_credential(values_by_name, CREDENTIAL_HEADERS)
    return (
        credential is not None
        and _read_credential(values_by_name, GATEWAY_KEY_HEADERS) is not None
        and _match_key(credential, rules) is None
    )


def _read_gateway_key(values_by_name: ValuesByName) -> str | None:
    """Return the key to look up in `auth.keys`: the key in a gateway header, else the only
    credential."""
    credential = _read_credential(values_by_name, CREDENTIAL_HEADERS)
    return _read_credential(values_by_name, GATEWAY_KEY_HEADERS) or credential


def _read_credential(values_by_name: ValuesByName, headers: Sequence[str]) -> str | None:
    """Return the credential in these headers, without its scheme. Raises BadRequest if two headers
    carry different ones (CVE-2026-45339)."""
    credentials = _list_credentials(values_by_name, headers)
    if len(credentials) > 1:
        raise BadRequest(
            f"two different credentials were sent ({', '.join(headers)}); send one",
            "om_two_credentials",
        )
    return next(iter(credentials), None)


def _list_credentials(values_by_name: ValuesByName, headers: Sequence[str]) -> set[str]:
    """Return the credentials in these headers, without their schemes. One that a browser adds to the
    request of another site's page by itself is none: the page has not brought it."""
    values = [value for header in headers for value in values_by_name.get(header, [])]
    if any(map(_is_ambient, values)) and is_from_other_site(values_by_name):
        values = [value for value in values if not _is_ambient(value)]
    return {credential for value in values if (credential := _strip_scheme(value))}


def _is_ambient(value: str) -> bool:
    """Return whether a browser may have added it: from the address, or as it remembers it."""
    return value.strip(HTTP_WHITESPACE).partition(" ")[0].lower() in _AMBIENT_SCHEMES


def _strip_scheme(value: str) -> str:
    value = value.strip(HTTP_WHITESPACE)
    scheme, _, credential = value.partition(" ")
    return credential.strip(HTTP_WHITESPACE) if scheme.lower() == "bearer" else value


def _find_key_owner(key: str | None, rules: IdentityRules) -> str:
    if not key:
        raise Unauthorized(_UNKNOWN_KEY_MESSAGE)
    owner = _match_key(key, rules)
    if owner is None:
        raise Unauthorized(_UNKNOWN_KEY_MESSAGE, "key")
    return owner


def _match_key(key: str, rules: IdentityRules) -> str | None:
    """Return the tenant of a configured key, or None. The hash of the sent key is compared with
    every configured one, so that the time taken reveals nothing."""
    sent_hash = hash_key(key.encode("latin-1"))
    owner = None
    for tenant, key_hash in rules.key_hashes:
        if hmac.compare_digest(sent_hash, key_hash):
            owner = tenant
    return owner
