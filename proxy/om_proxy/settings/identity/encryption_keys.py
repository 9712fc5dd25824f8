"""Read the master keys that stored text is encrypted with, as an operator writes them."""

from __future__ import annotations

import base64
import binascii
import hmac

MASTER_KEY_BYTES = 32
FILE_PREFIX = "file:"
COMMAND_PREFIX = "command:"
KEY_RULE = (
    "must be 32 bytes as base64 or hex, `file:` and a path, or `command:` and a program; "
    "make one with: openssl rand -base64 32"
)


def is_key_source(text: str) -> bool:
    """Return whether the text names where the key is, and is not the key itself."""
    return text.startswith((FILE_PREFIX, COMMAND_PREFIX))


def parse_master_key(text: str) -> bytes:
    """Return the 32 bytes of a key in hex or base64, also base64 for URLs. Raise ValueError, without
    the text, for anything else."""
    compact = text.strip()
    decoded = _decode_hex(compact) or _decode_base64(compact)
    if decoded is None or len(decoded) != MASTER_KEY_BYTES:
        raise ValueError(KEY_RULE)
    return decoded


def _decode_hex(text: str) -> bytes | None:
    if len(text) != 2 * MASTER_KEY_BYTES:
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None


def _decode_base64(text: str) -> bytes | None:
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    padded = standard + "=" * (-len(standard) % 4)
    try:
        return base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        return None


def name_master_key(key: bytes) -> str:
    """Return the id of a master key: it tells keys apart, may be shown, and does not tell the key."""
    return hmac.digest(key, b"om-proxy master key id", "sha256")[:6].hex()
