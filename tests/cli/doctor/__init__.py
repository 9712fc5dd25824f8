"""Tests of `om_proxy.cli.doctor`."""
