"""Tests of `om_proxy.upstream`."""
