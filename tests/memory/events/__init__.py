"""Tests of `om_proxy.memory.events`."""
