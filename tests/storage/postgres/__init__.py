"""Tests of `om_proxy.storage.postgres`."""
