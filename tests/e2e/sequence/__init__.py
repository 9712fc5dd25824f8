"""Several processes tell of one long conversation, and each tells the same."""
