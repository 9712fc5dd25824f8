"""Read the configuration, and find out who is asking.

Start with `config/snapshot.py`, the settings in force. `identity/callers.py` finds the tenant, the
resource and the thread of a request.
"""
