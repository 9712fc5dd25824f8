"""Pass a reply on to the client while a copy of it is read. Start with relay.py."""
