"""Requests and rules for the tests of identity."""

import hashlib
import hmac

from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.user_token import Claims, sign_claims

SECRET = b"s" * 32

RULES = IdentityRules()


def headers(**named: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


def tenant_of(key: str) -> str:
    return hmac.new(SECRET, key.encode(), hashlib.sha256).hexdigest()


CHOOSING = IdentityRules(scope_override=True)

KEYED = IdentityRules(keys=(("acme", "key-a"), ("globex", "key-b"), ("acme", "key-a2")))

SIGNING = b"0123456789abcdef0123456789abcdef"

SIGNED = IdentityRules(token_secret=SIGNING)

REQUIRED = IdentityRules(token_secret=SIGNING, token_required=True)

NOW = 1_700_000_000.0


def token(
    resource: str = "ada",
    thread: str | None = None,
    tenant: str | None = None,
    exp: float = NOW + 60,
) -> str:
    return sign_claims(Claims(resource=resource, exp=exp, thread=thread, tenant=tenant), SIGNING)
