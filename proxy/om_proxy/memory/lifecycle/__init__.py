"""Decide what is due for a memory, and what the memory is afterwards: start at decisions.py."""
