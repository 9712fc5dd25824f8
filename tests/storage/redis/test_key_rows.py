"""The master key of an encrypted Redis is changed while it is used."""

from __future__ import annotations

from tests.storage.key_rotation_contract import KeyRotationContract


class TestRedisKeyRotation(KeyRotationContract):
    """The contract under a prefix of its own."""
