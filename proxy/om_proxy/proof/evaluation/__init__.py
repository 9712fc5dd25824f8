"""Public benchmarks through the wire, with a log from which anyone can compute each number again.
Start with `run.py`."""
