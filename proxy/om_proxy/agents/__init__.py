"""The two background minds: an observer that turns messages into notes, a reflector that shortens
the notes."""
