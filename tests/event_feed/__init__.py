"""Tests of `om_proxy.event_feed`."""
