"""Answer look-ups: ask the store, and write what it holds as text."""
