"""Tests of `om_proxy.storage.shared`."""
