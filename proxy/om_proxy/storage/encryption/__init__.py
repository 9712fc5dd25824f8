"""Encrypt what a store keeps of conversations. Only `master_keys` needs the extra
`encryption`; it is imported once a key is set."""
