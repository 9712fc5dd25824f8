"""Tests of `om_proxy.memory.lifecycle`."""
