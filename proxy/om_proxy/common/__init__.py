"""Hold what every room may use: errors, reasons, time limits, tasks, the bounded cache.

Start with `errors.py`, the tree of errors. This room imports no other room.
"""
