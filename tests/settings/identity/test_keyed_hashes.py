"""Hashes under the server's secret."""

from om_proxy.memory.model import Key
from om_proxy.settings.identity.keyed_hashes import digest_name, fingerprint_key
from tests.settings.identity.examples import SECRET


def test_fingerprint_keys_differ_between_tenants() -> None:
    """Equal messages of two tenants have different fingerprints."""
    assert fingerprint_key(SECRET, "a") != fingerprint_key(SECRET, "b")


def test_digests_of_forgotten_names_differ() -> None:
    """Between threads, resources and tenants, also of one name, and between stores."""
    names = ("a", "a", "a"), ("a", "a", ""), ("a", "", ""), ("b", "a", "a"), ("a", "a", "\ud800")
    digests = {digest_name(secret, Key(*name)) for name in names for secret in (SECRET, b"other")}
    assert len(digests) == 2 * len(names)
    assert {len(digest) for digest in digests} == {16}
