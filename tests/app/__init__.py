"""Tests of `om_proxy.app`."""
