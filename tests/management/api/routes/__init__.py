"""Tests of `om_proxy.management.api.routes`."""
