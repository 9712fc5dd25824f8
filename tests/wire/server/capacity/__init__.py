"""Tests of `om_proxy.wire.server.capacity`."""
