"""An event as it is sent: in ASCII on one line, with or without text."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from om_proxy.engine.event_feed.envelope import select_types, write_data, write_event
from om_proxy.memory.events.parts import EVENT_TYPES, StoredPart
from om_proxy.memory.model import Key
from om_proxy.storage.values.stored_events import StoredEvent

HOSTILE = "a\r\n\r\nid: 9\nevent: x\ndata: y\u2028\x85\ud800\0<script>"
CLASSES = {part.TYPE: part for part in get_args(StoredPart)}


def make(type_: str = "data-om-activation") -> StoredEvent:
    data = dict.fromkeys((*CLASSES[type_].TEXT_FIELDS, "kept"), HOSTILE)
    key = Key("tenant", HOSTILE, HOSTILE)
    return StoredEvent(7, key, 1.5, type_, json.dumps(data))


def test_names_and_texts_cannot_end_the_line() -> None:
    """Whatever a thread is called, and whatever was said."""
    text = write_event(make(), with_text=True)
    assert text.isascii()
    assert text.isprintable()
    event = json.loads(text)
    assert (event["id"], event["at"], event["tenant"]) == ("7", 1.5, "tenant")
    assert event["thread"] == event["data"]["observations"] == HOSTILE


@pytest.mark.parametrize("type_", EVENT_TYPES)
def test_texts_are_left_out(type_: str) -> None:
    """Only the fields that hold text become null; a field that is not there stays away."""
    event = make(type_)
    assert write_data(event, with_text=True) is event.data
    hidden = json.loads(write_data(event, with_text=False))
    assert hidden == dict.fromkeys(CLASSES[type_].TEXT_FIELDS, None) | {"kept": HOSTILE}
    assert json.loads(write_data(event._replace(data="{}"), with_text=False)) == {}


def test_types_are_selected() -> None:
    one, other = make(), make("data-om-edited")
    assert select_types([one, other], frozenset()) == [one, other]
    assert select_types([one, other], frozenset({other.type})) == [other]


def test_an_unknown_type_is_sent_without_its_data() -> None:
    """A newer replica wrote it: which of its fields hold words is not known here."""
    event = make()._replace(type="data-om-of-tomorrow", data='{"words":"canary"}')
    assert write_data(event, with_text=False) == "null"
    assert json.loads(write_event(event, with_text=False))["data"] is None
    assert write_data(event, with_text=True) is event.data
