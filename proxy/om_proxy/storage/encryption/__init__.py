"""Encrypt what a store keeps of conversations. Only `sealed_value` and `master_keys` need
the extra `encryption`; they are imported once a key is set."""
