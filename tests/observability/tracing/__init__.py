"""Tests of `om_proxy.observability.tracing`."""
