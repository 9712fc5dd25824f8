"""A limit of warnings in a minute."""

from __future__ import annotations

from om_proxy.observability.logs import WarningLimit


def test_what_is_left_out_is_counted() -> None:
    """Two a minute pass. The next one that passes says how many did not."""
    now = 0.0
    limit = WarningLimit(2, clock=lambda: now)
    assert [limit.take() for _ in range(5)] == [{}, {}, None, None, None]
    now = 59.9
    assert limit.take() is None
    now = 60.0
    assert [limit.take() for _ in range(2)] == [{"left_out": 4}, {}]
