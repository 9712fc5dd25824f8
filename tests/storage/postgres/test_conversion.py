"""A PostgreSQL schema is encrypted, and its master key changed, while it is used."""

from __future__ import annotations

from tests.storage.conversion_contract import ConversionContract


class TestPostgresConversion(ConversionContract):
    """The contract on a schema of its own."""
