"""The format of an encrypted value: `0x01 ‖ nonce (12 bytes) ‖ ciphertext ‖ tag (16 bytes)`, by
AES-256-GCM with a random nonce. The associated data names the value's place."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from om_proxy.errors import UnopenedText

FORMAT = b"\x01"
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = len(FORMAT) + NONCE_BYTES + TAG_BYTES
_BODY = len(FORMAT) + NONCE_BYTES


def seal_value(key: AESGCM, value: bytes, place: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return FORMAT + nonce + key.encrypt(nonce, value, place)


def open_value(key: AESGCM, sealed: bytes, place: bytes) -> bytes:
    """Return the value. Raise UnopenedText if anything of it, its place or its key is another."""
    if len(sealed) < OVERHEAD_BYTES or sealed[0] != FORMAT[0]:
        raise UnopenedText("a stored value has no known format")
    try:
        return key.decrypt(sealed[1:_BODY], sealed[_BODY:], place)
    except InvalidTag:
        raise UnopenedText("a stored value does not open: it was changed or moved") from None
