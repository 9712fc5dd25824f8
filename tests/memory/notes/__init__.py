"""Tests of `om_proxy.memory.notes`."""
