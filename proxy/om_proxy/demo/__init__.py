"""The demonstration: a scripted model server, the proxy before it, and a long conversation played
with memory and without."""
