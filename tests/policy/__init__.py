"""Tests of proxy/om_proxy/policy/."""
