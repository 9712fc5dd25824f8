"""Tests of `om_proxy.storage.values`."""
