"""Hash keys, credentials and names under the server's secret. No hash reveals its input."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache

from om_proxy.memory.model import Key

MAX_CACHED_TENANTS = 4_096


def hash_key(key: bytes) -> bytes:
    """Return the SHA-256 of a configured or sent key, so that all compared values have one
    length."""
    return hashlib.sha256(key).digest()


def hash_credential(secret: bytes, credential: str) -> str:
    """Return the tenant that a provider's credential identifies if no keys are configured."""
    return hmac.new(secret, credential.encode("latin-1"), hashlib.sha256).hexdigest()


@lru_cache(maxsize=MAX_CACHED_TENANTS)
def fingerprint_key(secret: bytes, tenant: str) -> bytes:
    """Return the key of a tenant's message fingerprints. It makes the fingerprints of equal
    messages of two tenants different."""
    return hmac.new(secret, b"fingerprint\0" + tenant.encode(), hashlib.sha256).digest()


def digest_caller(secret: bytes, credentials: Iterable[bytes]) -> str:
    """Return the digest that names a caller in the audit. It reveals no key."""
    content = b"caller\0" + b"\0".join(credentials)
    return hmac.new(secret, content, hashlib.sha256).hexdigest()[:16]


def sign_content(secret: bytes, content: bytes) -> str:
    """Return the signature of a receipt."""
    return hmac.new(secret, b"receipt\0" + content, hashlib.sha256).hexdigest()


@lru_cache(maxsize=MAX_CACHED_TENANTS)
def hash_reply_id(secret: bytes, id_: str) -> bytes:
    """Return 16 bytes that stand for the id by which a server knows a reply. Stores compare them
    within one thread."""
    content = b"reply\0" + id_.encode("utf-8", "surrogatepass")
    return hmac.new(secret, content, hashlib.sha256).digest()[:16]


def hash_seed(secret: bytes) -> int:
    """Return 64 bits for hashes that only this server compares."""
    return int.from_bytes(hmac.new(secret, b"seed", hashlib.sha256).digest()[:8], "big")


def digest_name(secret: bytes, key: Key) -> bytes:
    """Return 16 bytes that stand for a name that was forgotten: of a thread, with an empty thread of
    a resource, with an empty resource too of a tenant."""
    content = b"forgotten\0" + "\0".join(key).encode("utf-8", "surrogatepass")
    return hmac.new(secret, content, hashlib.sha256).digest()[:16]


def label_thread(secret: bytes, key: Key) -> str:
    """Return the label that names a thread to readers of the other threads of its resource: 16
    hexadecimal digits that reveal nothing."""
    return hmac.new(secret, b"label\0" + "\0".join(key).encode(), hashlib.sha256).hexdigest()[:16]
