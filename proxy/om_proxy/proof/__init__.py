"""Proof that anyone can run: histories of other programs are read, and played through the real proxy.

`serve` imports nothing of this room.
"""
