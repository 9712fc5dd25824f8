"""Keep a memory in step with its conversation: before, during and after a reply.

Start with `turns/engine.py`, which opens and closes a turn. `background/scheduler.py` starts the
work after the reply, and `memory_cache/memories.py` is the only place that writes a memory.
"""
