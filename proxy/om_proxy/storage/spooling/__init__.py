"""Keep acknowledged turns while the store cannot be written. Start with spooling_store.py."""
