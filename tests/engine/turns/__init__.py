"""Tests of `om_proxy.engine.turns`."""
