"""Tests of `om_proxy.steering`."""
