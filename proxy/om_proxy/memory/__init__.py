"""The domain, pure: the values that a memory is made of, and every rule about it.

Start with `model.py`, the nouns, then `lifecycle/decisions.py`. Nothing here waits, reads a clock
or knows a setting.
"""
