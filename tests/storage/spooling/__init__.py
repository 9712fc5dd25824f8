"""Tests of `om_proxy.storage.spooling`."""
