"""Tests of `om_proxy.cli.serving`."""
