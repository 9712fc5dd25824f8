"""Tests of `om_proxy.background.performers`."""
