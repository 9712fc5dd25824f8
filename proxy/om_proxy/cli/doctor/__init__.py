"""Examine a configuration, its servers and the threads in its store: what works, and what needs
attention."""
