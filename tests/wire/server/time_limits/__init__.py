"""Tests of `om_proxy.wire.server.time_limits`."""
