"""The events of one call of a memory model."""

from __future__ import annotations

import msgspec
import pytest

from om_proxy.memory.events.changes import Cycle, Subject, make_end, make_failed, make_start
from om_proxy.memory.events.parts import Event, MarkerConfig, OperationType
from om_proxy.memory.model import Key, Memory, ObservationLog, Reflection

OWN_LOG_MEMORY = Memory(key=Key("tenant", "resource", "thread"), log=ObservationLog(generation=3))
SUBJECT = Subject("label", "thread", MarkerConfig(30_000, 40_000, "thread"))
NOTES = Reflection(
    generation=0, sources=(), text="* noted", tokens=12, source_tokens=400, at=0.0, task="the task"
)


def fields_of(event: Event) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(event.part)
    return fields


@pytest.mark.parametrize("operation", ["observation", "reflection"])
@pytest.mark.parametrize(
    ("is_awaited", "kind", "asked", "read", "made"),
    [
        (True, "observation", "tokensToObserve", "tokensObserved", "observationTokens"),
        (False, "buffering", "tokensToBuffer", "tokensBuffered", "bufferedTokens"),
    ],
)
def test_a_cycle(
    operation: OperationType, is_awaited: bool, kind: str, asked: str, read: str, made: str
) -> None:
    """What is waited for is an observation, the rest is buffering. All three events name the cycle
    and the log's generation."""
    cycle = Cycle("id", operation, is_awaited, 1.0, 500, ("thread", "other"))
    common = {
        "recordId": "label.g3",
        "threadId": "thread",
        "cycleId": "id",
        "operationType": operation,
    }
    start = make_start(cycle, OWN_LOG_MEMORY, SUBJECT)
    assert (start.at, start.part.TYPE) == (1.0, f"data-om-{kind}-start")
    assert fields_of(start) == common | {
        "startedAt": "1970-01-01T00:00:01.000Z",
        asked: 500,
        "threadIds": ("thread", "other"),
        "config": {"messageTokens": 30_000, "observationTokens": 40_000, "scope": "thread"},
    }
    end = make_end(cycle, NOTES, OWN_LOG_MEMORY, SUBJECT, 3.5)
    assert (end.at, end.part.TYPE) == (3.5, f"data-om-{kind}-end")
    assert fields_of(end) == common | {
        "completedAt": "1970-01-01T00:00:03.500Z",
        "durationMs": 2_500,
        read: 400,
        made: 12,
        "observations": "* noted",
        "currentTask": "the task",
    }
    failed = make_failed(cycle, "om_model", OWN_LOG_MEMORY, SUBJECT, 0.5)
    assert (failed.at, failed.part.TYPE) == (0.5, f"data-om-{kind}-failed")
    assert fields_of(failed) == common | {
        "failedAt": "1970-01-01T00:00:00.500Z",
        "durationMs": 0,  # the clock was set back
        "tokensAttempted": 500,
        "error": "om_model",
    }
