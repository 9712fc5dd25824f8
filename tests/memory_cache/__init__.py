"""Tests of `om_proxy.memory_cache`."""
