"""Readers of other programs' histories: a file for each program, found by `registry.py`."""
