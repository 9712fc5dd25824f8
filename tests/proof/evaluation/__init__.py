"""Tests of public benchmarks through the wire."""
