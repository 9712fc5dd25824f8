"""Carry bytes in and out: the APIs of clients, the HTTP server, the way to model servers.

Start with `apis/api.py`, the seam that each API implements. `server/protocol.py` takes requests
from clients, and `upstream/calls.py` sends them to model servers.
"""
