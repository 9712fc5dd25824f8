"""What the backends share: decode rows, plan changes, migrate, search without an index."""
