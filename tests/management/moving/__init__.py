"""Tests of `om_proxy.management.moving`."""
