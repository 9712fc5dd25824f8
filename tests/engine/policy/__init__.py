"""Tests of proxy/om_proxy/engine/policy/."""
