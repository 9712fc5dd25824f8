"""Tests of `om_proxy.wire.apis.chat.look_ups`."""
