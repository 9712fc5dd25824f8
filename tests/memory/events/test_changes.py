"""The events in a change of a memory."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from om_proxy.memory.events.changes import (
    NO_CAUSE,
    Cause,
    Cycle,
    Subject,
    Trigger,
    describe_trigger,
    list_events,
    may_have_events,
)
from om_proxy.memory.events.parts import MarkerConfig
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import Memory, replace_log
from tests.memory import building

SUBJECT = Subject("label", "thread", MarkerConfig(1_000, 2_000, "thread"))
CHUNKED = building.chunked(4, 100, 2, 4)
REFLECTED = replace_log(
    building.with_log(CHUNKED, 50, 60),
    reflection=building.reflection(building.with_log(CHUNKED, 50, 60), 40),
)


def told(before: Memory, after: Memory, cause: Cause = NO_CAUSE) -> list[dict[str, Any]]:
    """Return type and data of each event, without the ids of cycles."""
    ids = count()
    events = list_events(before, after, cause, SUBJECT, 9.0, lambda: f"id {next(ids)}")
    assert all(event.at == 9.0 for event in events)
    return [{"type": e.part.TYPE, **msgspec.to_builtins(e.part)} for e in events]


def test_a_turn_has_no_events() -> None:
    """New messages alone are none, and that is seen without a look at them."""
    grown = replace(CHUNKED, tail=building.chat(5, 100), turns=3, model="m")
    assert not may_have_events(CHUNKED, grown)
    assert told(CHUNKED, grown) == []


def test_each_chunk_that_becomes_active_is_told() -> None:
    """One event for each chunk, with what leaves the prompt and what takes its place."""
    ids = [chunk.id for chunk in CHUNKED.chunks]
    after = transitions.activate_chunks(CHUNKED, ids, 5.0)
    assert may_have_events(CHUNKED, after)
    first, second = told(CHUNKED, after, Cause(trigger=Trigger("threshold", 4.0)))
    assert first == {
        "type": "data-om-activation",
        "recordId": "label.g0",
        "threadId": "thread",
        "cycleId": "id 0",
        "operationType": "observation",
        "activatedAt": "1970-01-01T00:00:09.000Z",
        "chunksActivated": 1,
        "tokensActivated": 200,
        "observationTokens": 100,
        "messagesActivated": 2,
        "generationCount": 0,
        "observations": "* 🔴 (10:00) noted",
        "config": {"messageTokens": 1_000, "observationTokens": 2_000, "scope": "thread"},
        "triggeredBy": "threshold",
        "lastActivityAt": "1970-01-01T00:00:04.000Z",
    }
    assert second["cycleId"] == "id 1"


def test_a_chunk_that_is_dropped_became_nothing() -> None:
    """A fork takes chunks back: they are not active."""
    assert told(CHUNKED, replace(CHUNKED, chunks=())) == []


def test_a_reflection_that_is_swapped_in() -> None:
    """A swap is one activation, with the tokens of notes before and after."""
    after = transitions.swap_reflection(REFLECTED, 5.0)
    [swap] = told(REFLECTED, after, Cause(trigger=Trigger("threshold")))
    assert swap["type"] == "data-om-activation"
    assert swap["operationType"] == "reflection"
    assert (swap["tokensActivated"], swap["observationTokens"]) == (1, 40)
    assert swap["generationCount"] == after.log.generation
    assert swap["recordId"] == f"label.g{after.log.generation}"
    assert swap["triggeredBy"] == "threshold"


def test_a_reflection_that_is_dropped_is_no_activation() -> None:
    """A new generation without the reflection is something else."""
    after = replace_log(REFLECTED, reflection=None, generation=1, next_generation=2)
    assert told(REFLECTED, after) == []


@pytest.mark.parametrize("is_awaited", [True, False])
def test_the_end_of_an_observation(is_awaited: bool) -> None:
    """Stored notes end their cycle; notes that no longer fit do not."""
    before = building.memory(building.chat(4, 100))
    chunk = replace(building.chunk(before, 2), task="t", suggestion="s", title="New")
    after = transitions.add_chunk(before, chunk)
    cause = Cause(cycle=Cycle("the cycle", "observation", is_awaited, 8.0, 300))
    end, title = told(before, after, cause)
    kind = "observation" if is_awaited else "buffering"
    assert end["type"] == f"data-om-{kind}-end"
    assert (end["cycleId"], end["durationMs"], end["currentTask"]) == ("the cycle", 1_000, "t")
    assert end["tokensObserved" if is_awaited else "tokensBuffered"] == 200
    assert title["type"] == "data-om-thread-update"
    assert (title["newTitle"], title.get("oldTitle")) == ("New", None)
    assert told(after, after, cause) == []


def test_the_end_of_a_reflection() -> None:
    """A kept reflection ends its cycle."""
    before = replace_log(REFLECTED, reflection=None)
    made = REFLECTED.log.reflection
    assert made is not None
    after = transitions.keep_reflection(before, made)
    [end] = told(before, after, Cause(cycle=Cycle("c", "reflection", False, 8.0, 300)))
    assert end["type"] == "data-om-buffering-end"
    assert end["operationType"] == "reflection"
    assert end["bufferedTokens"] == 40


def test_a_title_is_told_with_the_old_one() -> None:
    """A title that changes back to none is told too."""
    titled = replace(CHUNKED, title="one")
    [update] = told(titled, replace(CHUNKED, title=None))
    assert (update["oldTitle"], update["newTitle"]) == ("one", None)
    assert told(replace(CHUNKED, title=None), replace(CHUNKED, title="")) == []


def test_what_a_person_does_names_what_changed() -> None:
    """An edit names what is gone and what came, also if that is nothing."""
    entry = REFLECTED.log.entries[0]
    other = replace(entry, id=77)
    after = replace_log(REFLECTED, entries=(other, *REFLECTED.log.entries[1:]), reflection=None)
    [edit] = told(REFLECTED, after, Cause(action="edited"))
    assert edit["type"] == "data-om-edited"
    assert (edit["action"], edit["removedIds"], edit["addedIds"]) == ("edited", (entry.id,), (77,))
    assert edit["observationTokens"] == after.log.tokens
    [setting] = told(CHUNKED, replace(CHUNKED, overrides=b"{}"), Cause(action="settings"))
    assert "removedIds" not in setting
    assert told(CHUNKED, CHUNKED, Cause(action="settings")) == []


def test_triggers() -> None:
    """A pause tells how long it was, another provider tells both models."""
    memory = replace(CHUNKED, turn_at=100.0, model="old")
    assert describe_trigger(memory, "ttl", 160.0) == Trigger("ttl", 100.0, 60.0)
    assert describe_trigger(memory, "threshold", 160.0, "new") == Trigger("threshold", 100.0)
    assert describe_trigger(memory, "provider_change", 160.0, "new") == Trigger(
        "provider_change", 100.0, None, "old", "new"
    )
    assert describe_trigger(CHUNKED, "ttl", 1.0) == Trigger("ttl")
