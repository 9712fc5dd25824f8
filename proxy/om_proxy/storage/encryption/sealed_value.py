"""The format of an encrypted value: `0x01 ‖ nonce (12 bytes) ‖ ciphertext ‖ tag (16 bytes)`, by
AES-256-GCM with a random nonce. The associated data names the value's place."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from om_proxy.common.errors import UnopenedText

FORMAT = b"\x01"
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = len(FORMAT) + NONCE_BYTES + TAG_BYTES
_BODY = len(FORMAT) + NONCE_BYTES
NOT_OPENED = "a stored value does not open: it was changed or moved"


def seal_value(key: AESGCM, value: bytes | bytearray, place: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return FORMAT + nonce + key.encrypt(nonce, value, place)


def open_value(key: AESGCM, sealed: bytes, place: bytes) -> bytes:
    """Return the value. Raise UnopenedText if anything of it, its place or its key is another."""
    _check_format(sealed)
    try:
        return key.decrypt(sealed[1:_BODY], sealed[_BODY:], place)
    except InvalidTag:
        raise UnopenedText(NOT_OPENED) from None


def open_buffer(key: AESGCM, sealed: bytes, place: bytes) -> bytearray:
    """Return the value, as `open_value` does, in a buffer that its owner can wipe. No other copy of it
    is made."""
    _check_format(sealed)
    value = bytearray(len(sealed) - OVERHEAD_BYTES)
    try:
        key.decrypt_into(sealed[1:_BODY], sealed[_BODY:], place, value)
    except InvalidTag:
        raise UnopenedText(NOT_OPENED) from None
    return value


def wipe_buffer(buffer: bytearray) -> None:
    buffer[:] = bytes(len(buffer))  # of one length, so it is overwritten where it stands


def _check_format(sealed: bytes) -> None:
    if len(sealed) < OVERHEAD_BYTES or sealed[0] != FORMAT[0]:
        raise UnopenedText("a stored value has no known format")
