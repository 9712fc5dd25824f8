"""Tests of `om_proxy.management.steering`."""
