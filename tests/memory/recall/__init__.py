"""Tests of `om_proxy.memory.recall`."""
