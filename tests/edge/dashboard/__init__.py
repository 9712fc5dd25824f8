"""Tests of `om_proxy.edge.dashboard`."""
