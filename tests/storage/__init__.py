"""Tests of `om_proxy.storage`, and the contract that every store keeps."""
