"""The master key of an encrypted PostgreSQL schema is changed while it is used."""

from __future__ import annotations

from tests.storage.key_rotation_contract import KeyRotationContract


class TestPostgresKeyRotation(KeyRotationContract):
    """The contract on a schema of its own."""
