"""Measures the notes: plays a recorded conversation through the proxy and shows what the memory
model's notes keep.

`recorded.py` reads conversations, `play.py` plays them, `folder.py` and `server.py` stand in the
memory model's place. `facts.py`, `calls.py`, `hint_age.py`, `compression.py` and `judge.py` measure
and are pure; `report.py` prints. Run by `scripts/notes`.
"""
