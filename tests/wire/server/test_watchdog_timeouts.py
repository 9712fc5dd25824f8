"""When a client is too slow. Connections are checked a second apart unless a case says
otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from om_proxy.settings.config.sections.service import LimitSettings
from om_proxy.wire.server.watchdog import (
    REFUSAL_READ_TIMEOUT_S,
    ConnectionSample,
    ConnectionStage,
    TimeoutDetector,
    TimeoutKind,
)

LIMITS = LimitSettings(header_timeout=10.0, body_timeout=30.0, write_timeout=60.0, keep_alive=5.0)
MANY = 10_000


def detect_all(
    seen: Sequence[ConnectionSample], seconds: float = 1.0
) -> tuple[TimeoutKind | None, float]:
    """Return what ends the connection, and when after the first check. The last sample is repeated
    for three hours."""
    detector = TimeoutDetector()
    for n in range(int(MANY / seconds)):
        if kind := detector.detect(seen[min(n, len(seen) - 1)], 100.0 + n * seconds, LIMITS):
            return kind, n * seconds
    return None, 0.0


def at(
    stage: ConnectionStage,
    *,
    request: int = 0,
    received: int = 0,
    unsent: int = 0,
    resumed: int = 0,
) -> ConnectionSample:
    return ConnectionSample(stage, request, received, unsent, resumed)


@pytest.mark.parametrize(
    ("stage", "ends"),
    [
        ("head", ("head", 10)),
        ("body", ("body", 30)),
        ("rest", ("rest", 30)),
        ("idle", ("idle", LIMITS.keep_alive)),
        ("left", ("left", REFUSAL_READ_TIMEOUT_S)),
        ("behind", ("behind", 1)),
        ("proxy", (None, 0)),
    ],
)
def test_a_connection_without_progress(
    stage: ConnectionStage, ends: tuple[TimeoutKind | None, float]
) -> None:
    """Each stage has its time. The proxy's own turn has no limit."""
    assert detect_all([at(stage)]) == ends


@pytest.mark.parametrize(
    ("rate", "ends"),
    [
        (0, ("body", 30)),
        (1, ("body", 30)),
        (1_000, ("body", 30)),
        (1_024, (None, 0)),
        (50_000, (None, 0)),
    ],
)
def test_a_body_at_a_rate(rate: int, ends: tuple[TimeoutKind | None, float]) -> None:
    """A trickle is cut in the first span. A body at a kilobyte a second may take three hours."""
    assert detect_all([at("body", received=n * rate) for n in range(MANY)]) == ends


def test_a_body_that_stops() -> None:
    """Bytes of one span do not count for the next: a span without bytes ends it."""
    assert detect_all([at("body", received=n * 1_000_000) for n in range(45)]) == ("body", 90)


def test_a_body_we_stop_reading() -> None:
    """A client is not slow while we do not read. Then it has its whole time again."""
    assert detect_all([*[at("body")] * 29, *[at("proxy")] * 100, at("body")]) == (
        "body",
        29 + 100 + 30,
    )


def test_each_request_has_its_own_time() -> None:
    """A client that sends request after request is never late, even if it is always checked at the
    same stage."""
    assert detect_all([at("head", request=n) for n in range(MANY)]) == (None, 0)
    assert detect_all([at("idle", request=n) for n in range(MANY)]) == (None, 0)


def test_a_head_after_silence() -> None:
    """The silence between requests does not count for the head that follows."""
    assert detect_all([*[at("idle", request=1)] * 5, at("head", request=1)]) == ("head", 15)


@pytest.mark.parametrize(
    ("stage", "ends"), [("proxy", ("write", 65)), ("rest", ("rest", 35)), ("left", ("left", 7))]
)
def test_a_reader_that_takes_nothing(
    stage: ConnectionStage, ends: tuple[TimeoutKind | None, float]
) -> None:
    """A reply that is not read ends the connection. Another limit may end it sooner."""
    assert detect_all([*[at("proxy")] * 5, at(stage, unsent=70_000)]) == ends


@pytest.mark.parametrize(
    ("taken", "ends"),
    [(1, ("write", 60)), (1_000, ("write", 60)), (1_024, (None, 0)), (9_000, (None, 0))],
)
def test_a_reader_at_a_rate(taken: int, ends: tuple[TimeoutKind | None, float]) -> None:
    """A reply of many megabytes is written at once, and read at this rate."""
    assert detect_all([at("proxy", unsent=MANY * 9_000 - n * taken) for n in range(MANY)]) == ends


def test_a_reader_that_is_slower_than_the_model() -> None:
    """The write buffer is filled again whenever it has room, so having had room counts as
    reading."""
    assert detect_all([at("proxy", unsent=65_000, resumed=n // 40) for n in range(MANY)]) == (
        None,
        0,
    )
    assert detect_all([at("proxy", unsent=65_000, resumed=n // 40) for n in range(200)]) == (
        "write",
        160 + 60,
    )


def test_a_reader_that_keeps_up() -> None:
    """An empty write buffer now and then counts as reading all of it."""
    assert detect_all([at("proxy", unsent=(n % 50) * 100) for n in range(MANY)]) == (None, 0)


def test_checks_far_apart() -> None:
    """A late check ends what is late, and not what is new."""
    assert detect_all([at("head"), at("body", received=1)], seconds=40) == ("body", 80)
