"""Tests of `om_proxy.server`."""
