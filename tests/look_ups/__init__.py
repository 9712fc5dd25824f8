"""Tests of `om_proxy.look_ups`."""
