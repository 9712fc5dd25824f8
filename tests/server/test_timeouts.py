"""When a client is too slow: looks at a connection, a second apart unless a case says otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from om_proxy.server.timeouts import (
    REFUSAL_READ_TIMEOUT_S,
    ConnectionSample,
    ConnectionStage,
    TimeoutDetector,
    TimeoutKind,
)
from om_proxy.settings.service import LimitSettings

LIMITS = LimitSettings(header_timeout=10.0, body_timeout=30.0, write_timeout=60.0)
IDLE = 5.0
MANY = 10_000


def looks(
    seen: Sequence[ConnectionSample], seconds: float = 1.0
) -> tuple[TimeoutKind | None, float]:
    """What ends the connection, and when after the first look; the last look is repeated for ever
    (three hours)."""
    detector = TimeoutDetector()
    for n in range(int(MANY / seconds)):
        if kind := detector.detect(seen[min(n, len(seen) - 1)], 100.0 + n * seconds, LIMITS, IDLE):
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
        ("idle", ("idle", IDLE)),
        ("left", ("left", REFUSAL_READ_TIMEOUT_S)),
        ("behind", ("behind", 1)),
        ("proxy", (None, 0)),
    ],
)
def test_one_in_which_nothing_happens(
    stage: ConnectionStage, ends: tuple[TimeoutKind | None, float]
) -> None:
    """Each stage has its time; our own turn has all there is."""
    assert looks([at(stage)]) == ends


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
    """A trickle is cut in the first span; what comes at a kilobyte a second may take three
    hours."""
    assert looks([at("body", received=n * rate) for n in range(MANY)]) == ends


def test_a_body_that_stops() -> None:
    """What came before is no credit for later: a span without any ends it."""
    assert looks([at("body", received=n * 1_000_000) for n in range(45)]) == ("body", 90)


def test_a_body_we_stop_reading() -> None:
    """While we do not read, its client is not slow; then it has its whole time again."""
    assert looks([*[at("body")] * 29, *[at("proxy")] * 100, at("body")]) == ("body", 29 + 100 + 30)


def test_each_request_has_its_own_time() -> None:
    """A client that asks again and again, always at the same stage when it is looked at, is never
    late."""
    assert looks([at("head", request=n) for n in range(MANY)]) == (None, 0)
    assert looks([at("idle", request=n) for n in range(MANY)]) == (None, 0)


def test_a_head_after_silence() -> None:
    """Silence between requests is not held against the head that follows."""
    assert looks([*[at("idle", request=1)] * 5, at("head", request=1)]) == ("head", 15)


@pytest.mark.parametrize(
    ("stage", "ends"), [("proxy", ("write", 65)), ("rest", ("rest", 35)), ("left", ("left", 7))]
)
def test_a_reader_that_takes_nothing(
    stage: ConnectionStage, ends: tuple[TimeoutKind | None, float]
) -> None:
    """A reply nobody takes is given up; whatever else ends the connection may do so before."""
    assert looks([*[at("proxy")] * 5, at(stage, unsent=70_000)]) == ends


@pytest.mark.parametrize(
    ("taken", "ends"),
    [(1, ("write", 60)), (1_000, ("write", 60)), (1_024, (None, 0)), (9_000, (None, 0))],
)
def test_a_reader_at_a_rate(taken: int, ends: tuple[TimeoutKind | None, float]) -> None:
    """One reply of many megabytes that is written at once."""
    assert looks([at("proxy", unsent=MANY * 9_000 - n * taken) for n in range(MANY)]) == ends


def test_a_reader_that_is_slower_than_the_model() -> None:
    """Whenever it has made room it is filled up again: that there was room is what counts."""
    assert looks([at("proxy", unsent=65_000, resumed=n // 40) for n in range(MANY)]) == (None, 0)
    assert looks([at("proxy", unsent=65_000, resumed=n // 40) for n in range(200)]) == (
        "write",
        160 + 60,
    )


def test_a_reader_that_keeps_up() -> None:
    """Nothing unsent now and then is taking all of it."""
    assert looks([at("proxy", unsent=(n % 50) * 100) for n in range(MANY)]) == (None, 0)


def test_looks_far_apart() -> None:
    """A late check ends what is late, not what is new."""
    assert looks([at("head"), at("body", received=1)], seconds=40) == ("body", 80)
