"""Tests of `om_proxy.observability.figures`."""
