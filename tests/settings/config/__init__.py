"""Tests of `om_proxy.settings.config`."""
