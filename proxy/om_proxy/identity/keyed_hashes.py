"""Hashes under the server's secret: none of them reveals its input."""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

from om_proxy.memory.model import Key


def hash_key(key: bytes) -> bytes:
    """SHA-256 of a configured or sent key, so that all comparisons are of one length."""
    return hashlib.sha256(key).digest()


def hash_credential(secret: bytes, credential: str) -> str:
    """The tenant that a provider's credential stands for, where no keys are configured."""
    return hmac.new(secret, credential.encode("latin-1"), hashlib.sha256).hexdigest()


@lru_cache(maxsize=4_096)
def fingerprint_key(secret: bytes, tenant: str) -> bytes:
    """Return the key of a tenant's message fingerprints, so that equal messages of two tenants have
    different ones."""
    return hmac.new(secret, b"fingerprint\0" + tenant.encode(), hashlib.sha256).digest()


def hash_seed(secret: bytes) -> int:
    """Return 64 bits for hashes that only this server compares."""
    return int.from_bytes(hmac.new(secret, b"seed", hashlib.sha256).digest()[:8], "big")


def label_thread(secret: bytes, key: Key) -> str:
    """Return a thread's name for the readers of its resource's other threads: 16 hexadecimal digits
    that reveal nothing."""
    return hmac.new(secret, b"label\0" + "\0".join(key).encode(), hashlib.sha256).hexdigest()[:16]
