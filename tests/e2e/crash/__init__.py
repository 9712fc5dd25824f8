"""The proxy is killed, and what it had promised is looked for."""
