"""Tests of `om_proxy.identity`."""
