"""The time zone a thread keeps."""

import pytest

from om_proxy.memory.dates import find_zone


@pytest.mark.parametrize(
    ("kept", "name"),
    [("Asia/Tokyo", "Asia/Tokyo"), (None, "UTC"), ("Moved/Away", "UTC"), ("../etc/passwd", "UTC")],
)
def test_zone(kept: str | None, name: str) -> None:
    """The kept one, if this machine knows it; else the configured one: a thread's memory does not
    end with a table."""
    assert find_zone(kept, "UTC").key == name
