"""Tests of `om_proxy.edge.mcp`."""
