"""The proxy, its clients and its store in one seeded event loop."""
