"""Results of forgetting add up."""

from __future__ import annotations

from om_proxy.storage.records import ForgetResult


def test_results_add_up() -> None:
    one, other = ForgetResult(1, 2, 3, 4, 5), ForgetResult(10, 20, 30, 40, 50, "pending", "gone")
    total = one.add(other)
    assert total == (11, 22, 33, 44, 55, "pending", "gone")
    assert one.add(one).database == "gone"
    assert total.add(ForgetResult(log="pending")).log == "pending"
    assert list(total.counts.values()) == [11, 22, 33, 44, 55]
