"""The parts of events: their types and fields, as the reference names them."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from om_proxy.memory.events.parts import Part, StoredPart, format_time

# what the reference implementation documents, without what it says of partial notes
REFERENCE_FIELDS = {
    "data-om-observation-start": (
        "cycleId operationType startedAt tokensToObserve recordId threadId threadIds config"
    ),
    "data-om-observation-end": (
        "cycleId operationType completedAt durationMs tokensObserved observationTokens "
        "observations currentTask suggestedResponse recordId threadId"
    ),
    "data-om-observation-failed": (
        "cycleId operationType failedAt durationMs tokensAttempted error recordId threadId"
    ),
    "data-om-buffering-start": (
        "cycleId operationType startedAt tokensToBuffer recordId threadId threadIds config"
    ),
    "data-om-buffering-end": (
        "cycleId operationType completedAt durationMs tokensBuffered bufferedTokens "
        "observations currentTask suggestedResponse recordId threadId"
    ),
    "data-om-buffering-failed": (
        "cycleId operationType failedAt durationMs tokensAttempted error recordId threadId"
    ),
    "data-om-activation": (
        "cycleId operationType activatedAt chunksActivated tokensActivated observationTokens "
        "messagesActivated generationCount observations recordId threadId config "
        "triggeredBy lastActivityAt ttlExpiredMs previousModel currentModel"
    ),
    "data-om-thread-update": "cycleId threadId oldTitle newTitle timestamp recordId",
}
CLASSES = {part.TYPE: part for part in get_args(StoredPart)}


@pytest.mark.parametrize("type_", REFERENCE_FIELDS)
def test_fields_are_those_of_the_reference(type_: str) -> None:
    """A client written for the reference finds every field it knows, and no other."""
    fields = {field.encode_name for field in msgspec.structs.fields(CLASSES[type_])}
    assert fields == set(REFERENCE_FIELDS[type_].split())


def test_types_are_distinct() -> None:
    """Each class has a type of its own; two are ours."""
    assert len(CLASSES) == len(get_args(StoredPart))
    assert CLASSES.keys() - REFERENCE_FIELDS.keys() == {"data-om-edited", "data-om-forgotten"}


@pytest.mark.parametrize("part", CLASSES.values(), ids=CLASSES.keys())
def test_text_fields_are_fields(part: type[Part]) -> None:
    """Each named text is a field that may be missing, or is a text."""
    names = {field.encode_name for field in msgspec.structs.fields(part)}
    assert set(part.TEXT_FIELDS) <= names


def test_times_are_iso() -> None:
    """Times are in UTC, with milliseconds."""
    assert format_time(0.0) == "1970-01-01T00:00:00.000Z"
    assert format_time(1_700_000_000.1239) == "2023-11-14T22:13:20.123Z"
