"""Tests of `om_proxy.doctor`."""
