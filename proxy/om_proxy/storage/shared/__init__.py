"""Share code between backends: decode rows, plan changes, migrate, search without an index."""
