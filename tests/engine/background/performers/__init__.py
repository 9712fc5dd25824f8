"""Tests of `om_proxy.engine.background.performers`."""
