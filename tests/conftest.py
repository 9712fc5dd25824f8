"""What holds for every test: a busy machine fails none of them, and the longest begin first."""

import gc
import logging
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import certifi
import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.long_forms import IS_LONG, list_beyond_samples
from tests.support.postgres_server import HOW_TO_START

# Each runs in one process (`--dist loadfile`). One that began last would keep a core busy alone.
LONGEST_FILES = [
    # not long, but first in its process: what litellm keeps in one is not ours to put back
    Path(__file__).with_name("test_cut_off_answers.py"),
    Path(__file__).with_name("e2e") / "tenancy" / "test_tenancy.py",
    Path(__file__).with_name("storage") / "postgres" / "test_store.py",
    Path(__file__).with_name("storage") / "sqlite" / "test_store.py",
    Path(__file__).with_name("management") / "dashboard" / "test_pages_in_browser.py",
    Path(__file__).with_name("storage") / "redis" / "test_store.py",
    Path(__file__).with_name("storage") / "spooling" / "test_spooling_store.py",
    Path(__file__).with_name("e2e") / "test_hostile_texts.py",
    Path(__file__).with_name("storage") / "postgres" / "test_store_behind_pooler.py",
    Path(__file__).with_name("e2e") / "replicas" / "test_replicas.py",
]

# as in observability/logs.py, which the tests of stores do not import
LOGGED_LIBRARIES = ("uvicorn.error", "asyncio", "opentelemetry")

TESTS_OF_STORES = Path(__file__).with_name("storage")

settings.register_profile(
    "the same on every machine",
    # an example takes as long as the machine lets it
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # a run tries what the last one tried; the long forms try something else each time
    derandomize=not IS_LONG,
)
settings.load_profile("the same on every machine")


# Collecting makes some million objects that all stay: looking for garbage among them finds none.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, and never among what is there."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = set() if IS_LONG else set(list_beyond_samples(items))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    ranks = {path: rank for rank, path in enumerate(LONGEST_FILES)}
    kept = [item for item in items if item not in left_out]
    items[:] = sorted(kept, key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def patient_proxy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a request wait a minute for its memory, not five seconds. A test of that limit sets its
    own. Tests of stores alone send no request, and a third of their start would be its imports."""
    if all(TESTS_OF_STORES in item.path.parents for item in request.session.items):
        yield
        return
    with mock.patch("om_proxy.edge.chat.MAX_OPEN_S", 60.0):
        yield


@pytest.fixture(scope="session", autouse=True)
def authorities_read_once() -> Iterator[None]:
    """Let clients of httpx share the authorities that it trusts. Each client reads them anew, for
    40 ms of a core, and the tests make thousands of clients, few of which see a certificate."""
    make_context = ssl.create_default_context
    share_context = cache(make_context)

    def find_context(*args: Any, **options: Any) -> ssl.SSLContext:
        is_of_httpx = not args and options == {"cafile": certifi.where()}
        return share_context(**options) if is_of_httpx else make_context(*args, **options)

    with mock.patch("ssl.create_default_context", find_context):
        yield


@pytest.fixture(scope="module", autouse=True)
def unchanged_log_per_file() -> Iterator[None]:
    """The files of one process share structlog's settings and the handlers of logging. A file that
    ran a command in this process would leave its log, often none, to the tests of the next file."""
    handlers = {name: logging.getLogger(name).handlers[:] for name in LOGGED_LIBRARIES}
    yield
    structlog.reset_defaults()
    for name, kept in handlers.items():
        logging.getLogger(name).handlers = kept
    for handler in logging.getLogger().handlers[:]:
        if type(handler) is logging.NullHandler:  # a command's; the others are pytest's
            logging.getLogger().removeHandler(handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it loudly if no server was there to test with."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(HOW_TO_START in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} TESTS WERE SKIPPED: {HOW_TO_START}", yellow=True)
