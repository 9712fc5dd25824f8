"""What holds for every test: a busy machine fails none of them."""

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings

from tests.support.postgres_server import HOW_TO_START

settings.register_profile(
    "no deadline", deadline=None
)  # an example takes as long as the machine lets it
settings.load_profile("no deadline")


@pytest.fixture(scope="session", autouse=True)
def patient_proxy() -> Iterator[None]:
    """Let a request wait a minute for its memory, not five seconds. A test of that limit sets its
    own."""
    with mock.patch("om_proxy.edge.chat.MAX_OPEN_S", 60.0):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it loudly if no server was there to test with."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(HOW_TO_START in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} TESTS WERE SKIPPED: {HOW_TO_START}", yellow=True)
