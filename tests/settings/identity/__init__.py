"""Tests of `om_proxy.settings.identity`."""
