"""Report events to the operator: the log, on stderr."""
