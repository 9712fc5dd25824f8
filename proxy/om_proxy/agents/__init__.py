"""The two background agents: an observer that turns messages into notes, and a reflector that
shortens the notes."""
