"""Tests of `om_proxy.cli.commands`."""
