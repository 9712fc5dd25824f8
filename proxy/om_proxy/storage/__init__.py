"""Keep memories.

Start with `base.py`, the contract; its parts are in `contract/`, and `values/` has the values
that it speaks of. `sqlite/`, `postgres/` and `redis/` are the backends; each `…_store` wraps one.
"""
