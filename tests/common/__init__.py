"""Tests of `om_proxy.common`."""
