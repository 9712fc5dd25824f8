"""Tests of `om_proxy.demo`."""
