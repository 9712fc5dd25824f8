"""Tests of `om_proxy.storage.redis`."""
