"""What the stores of SQL databases share: statements that are written once, and the methods that
run them. Start with `session.py`."""
