"""Serve one request with memory: read it, try it, relay the reply, store the turn.

Start with `chat.py`, the intercepted route and the one place that fails open. `passthrough.py`
relays every other request.
"""
