"""Tests of `om_proxy.telemetry`."""
