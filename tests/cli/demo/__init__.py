"""Tests of `om_proxy.cli.demo`."""
