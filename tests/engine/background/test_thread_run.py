"""How long requests wait for the same work."""

from __future__ import annotations

from om_proxy.engine.background.thread_run import SharedDeadline


def test_a_shared_deadline_is_counted_from_the_first_who_waits() -> None:
    """However long the work has gone on before, and whoever joins."""
    deadline = SharedDeadline()
    assert deadline.remaining(20.0, now=500.0) == 20.0
    deadline.begin(500.0)
    deadline.begin(515.0)
    assert deadline.remaining(20.0, now=515.0) == 5.0
    assert deadline.remaining(20.0, now=530.0) == -10.0
    assert deadline.remaining(60.0, now=530.0) == 30.0  # a thread of its own block_timeout
