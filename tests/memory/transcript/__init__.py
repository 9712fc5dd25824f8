"""Tests of `om_proxy.memory.transcript`."""
