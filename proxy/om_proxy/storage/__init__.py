"""Where memories are kept: `base` is the contract, each other file one backend that keeps it."""
