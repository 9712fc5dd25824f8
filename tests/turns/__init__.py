"""Tests of `om_proxy.turns`."""
