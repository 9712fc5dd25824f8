"""Tests of `om_proxy.agents`."""
