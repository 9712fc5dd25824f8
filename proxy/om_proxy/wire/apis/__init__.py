"""Bytes and JSON of each API on one side, neutral items on the other; pure."""
