"""Tests of `om_proxy.figures`."""
