"""The example in the docstring of `om_proxy.testing`, run as a user's test would run it."""

from __future__ import annotations

import doctest

from om_proxy import testing


def test_the_example_holds() -> None:
    """Every line prints what the docstring says."""
    result = doctest.testmod(testing)
    assert result.attempted >= 5
    assert result.failed == 0
