"""Look at a configuration, the servers it names and the threads in its store: what works, and what
needs attention."""
