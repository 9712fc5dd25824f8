"""Tests of `om_proxy.engine.memory_cache`."""
