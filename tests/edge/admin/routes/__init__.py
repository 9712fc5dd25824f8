"""Tests of `om_proxy.edge.admin.routes`."""
