"""Tests of `om_proxy.tracing`."""
