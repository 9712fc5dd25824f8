"""Tests of `om_proxy.storage.encryption`."""
