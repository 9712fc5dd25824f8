"""Tests of `om_proxy.edge.rounds`."""
