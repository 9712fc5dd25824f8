"""Tests of `om_proxy.moving`."""
