"""Say what happened to a memory, for people and programs that watch it (docs/spec/seeing.md#events)."""
