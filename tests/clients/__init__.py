"""Real client programs against the proxy: what `scripts/clients` plays."""
