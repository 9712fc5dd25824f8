"""Tests of `om_proxy.wire.upstream`."""
