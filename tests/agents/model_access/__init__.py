"""Tests of `om_proxy.agents.model_access`."""
