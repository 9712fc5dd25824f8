"""What holds for every test of a command: a command sets up the log of its process, and a test that
runs one in this process leaves the log as it was."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def unchanged_log() -> Iterator[None]:
    yield
    structlog.reset_defaults()
