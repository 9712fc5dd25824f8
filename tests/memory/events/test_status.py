"""The state of a memory as `data-om-status`."""

from __future__ import annotations

import msgspec
import pytest

from om_proxy.memory.events.changes import Subject
from om_proxy.memory.events.parts import MarkerConfig, OperationType
from om_proxy.memory.events.status import count_steps, make_status
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import replace_log
from tests.memory import building

SUBJECT = Subject("label", "thread", MarkerConfig(1_000, 2_000, "thread"))
LIMITS = Limits(observe_from_tokens=1_000, keep_tokens=500, reflect_from_tokens=2_000)


def test_an_empty_memory() -> None:
    """Nothing waits, and both windows have their thresholds."""
    status = msgspec.to_builtins(make_status(building.memory(()), LIMITS, SUBJECT))
    assert status == {
        "windows": {
            "active": {
                "messages": {"tokens": 0, "threshold": 1_000},
                "observations": {"tokens": 0, "threshold": 2_000},
            },
            "buffered": {
                "observations": {
                    "chunks": 0,
                    "messageTokens": 0,
                    "projectedMessageRemoval": 0,
                    "observationTokens": 0,
                    "status": "idle",
                },
                "reflection": {
                    "inputObservationTokens": 0,
                    "observationTokens": 0,
                    "status": "idle",
                },
            },
        },
        "recordId": "label.g0",
        "threadId": "thread",
        "stepNumber": 0,
        "generationCount": 0,
    }


def test_what_is_buffered() -> None:
    """Chunks and a reflection that wait are complete; the removal is what an activation takes."""
    memory = building.with_log(building.chunked(5, 100, 4, 8), 60, 70)
    memory = replace_log(memory, reflection=building.reflection(memory, 40))
    windows = make_status(memory, LIMITS, SUBJECT).windows
    assert windows.active.messages.tokens == 1_000
    assert windows.active.observations.tokens == 130
    chunks, reflection = windows.buffered.observations, windows.buffered.reflection
    assert (chunks.chunks, chunks.message_tokens, chunks.observation_tokens) == (2, 800, 200)
    assert chunks.projected_message_removal == 400
    assert (chunks.status, reflection.status) == ("complete", "complete")
    assert (reflection.input_observation_tokens, reflection.observation_tokens) == (1, 40)


@pytest.mark.parametrize("running", ["observation", "reflection"])
def test_what_is_under_way(running: OperationType) -> None:
    """Work under way counts more than what waits."""
    memory = building.chunked(5, 100, 4)
    buffered = make_status(memory, LIMITS, SUBJECT, running).windows.buffered
    assert buffered.observations.status == ("running" if running == "observation" else "complete")
    assert buffered.reflection.status == ("running" if running == "reflection" else "idle")


@pytest.mark.parametrize(
    ("roles", "steps"),
    [
        (["user"], 0),
        (["user", "assistant", "tool"], 1),
        (["user", "assistant", "tool", "assistant", "tool"], 2),
        (["user", "assistant", "user"], 0),
        (["assistant", "tool"], 1),
    ],
)
def test_steps_since_the_user(roles: list[str], steps: int) -> None:
    """Each reply of an agent's loop is a step."""
    memory = building.memory(building.transcript(*[(role, 100) for role in roles]))
    assert count_steps(memory) == steps
