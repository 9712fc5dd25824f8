"""Tests of `om_proxy.management.dashboard`."""
