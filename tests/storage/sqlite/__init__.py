"""Tests of `om_proxy.storage.sqlite`."""
