"""The tokens of several calls add up, part by part."""

from __future__ import annotations

from om_proxy.memory.usage import Usage


def test_usage_adds_up() -> None:
    assert Usage(10, 4, 3, 2) + Usage(1, 1, 0, 5) == Usage(11, 5, 3, 7)
