"""Say what happened to a memory, for people and programs that watch it
(docs/contributing/seeing.md#events)."""
