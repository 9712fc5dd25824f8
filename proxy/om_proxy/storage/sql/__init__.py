"""Share code between the stores of SQL databases: statements that are written once, and the methods
that run them. Start with `session.py`."""
