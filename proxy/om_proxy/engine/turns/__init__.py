"""The foreground: what happens to a memory between a request and its reply."""
