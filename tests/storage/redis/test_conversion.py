"""A Redis is encrypted, and its master key changed, while it is used."""

from __future__ import annotations

from tests.storage.conversion_contract import ConversionContract


class TestRedisConversion(ConversionContract):
    """The contract under a prefix of its own."""
