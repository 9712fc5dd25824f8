"""Tests of `om_proxy.testing`."""
