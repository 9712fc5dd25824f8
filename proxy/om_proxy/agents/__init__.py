"""Ask memory models: the observer makes notes of messages, the reflector shortens the notes.

Start with `observer.py`. `model_access/` asks a model, and `models/` has what is known of models
without asking one.
"""
