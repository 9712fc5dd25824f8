"""Tests of `om_proxy.wire.apis.responses`."""
