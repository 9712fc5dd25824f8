"""Hashes under the server's secret."""

from om_proxy.identity.keyed_hashes import fingerprint_key
from tests.identity.examples import SECRET


def test_fingerprint_keys_differ_between_tenants() -> None:
    """Equal messages of two tenants have different fingerprints."""
    assert fingerprint_key(SECRET, "a") != fingerprint_key(SECRET, "b")
