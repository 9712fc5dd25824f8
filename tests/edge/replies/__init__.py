"""Tests of `om_proxy.edge.replies`."""
