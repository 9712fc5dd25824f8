"""Tests of `om_proxy.memory.prompt`."""
