"""Play a long conversation with memory and without: a scripted model server, the proxy before it,
and a client."""
