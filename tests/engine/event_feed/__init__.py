"""Tests of `om_proxy.engine.event_feed`."""
