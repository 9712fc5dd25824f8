"""Read, cut and redact what a memory model wrote."""
