"""Tests of `om_proxy.apis`."""
