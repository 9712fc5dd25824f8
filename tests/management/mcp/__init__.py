"""Tests of `om_proxy.management.mcp`."""
