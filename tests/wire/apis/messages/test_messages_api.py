"""The API as one value, beside recordings of real clients: what goes on extends what was sent before,
its first new unit is the reply, and a body that is written again breaks nothing.

OM_TEST_CAPTURES names a folder of recordings: lists of requests and of the replies to them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.messages.messages_api import MESSAGES

KEY = b"k" * 32
FOLDER = os.environ.get("OM_TEST_CAPTURES", "")
Entry = dict[str, Any]

needs_recordings = pytest.mark.skipif(
    not FOLDER, reason="NO CLIENT'S RECORDING IS REPLAYED: OM_TEST_CAPTURES names none"
)


def list_recorded() -> Iterator[tuple[str, Entry]]:
    """List requests and replies in order, each with its session."""
    files = sorted(Path(FOLDER).glob("*.json")) if FOLDER else []
    entries = [(file.stem, entry) for file in files for entry in json.loads(file.read_bytes())]
    sessions: dict[int, str] = {}
    for name, entry in sorted(entries, key=lambda named: named[1]["n"]):
        if entry["request"].split("?")[0].endswith("/v1/messages") and entry["body"]:
            headers = {name.lower(): value for name, value in entry["headers"].items()}
            session = headers.get("x-claude-code-session-id", name)
            agent = headers.get("x-claude-code-agent-id", "")
            yield sessions.setdefault(entry["n"], session + agent), entry


def parse(entry: Entry) -> tuple[Request, list[tuple[bytes, bytes]]]:
    headers = [(k.lower().encode(), v.encode()) for k, v in entry["headers"].items()]
    return MESSAGES.parse_request(json.dumps(entry["body"]).encode()), headers


def read_fingerprints(request: Request) -> list[bytes]:
    return [MESSAGES.read_item(raw, KEY).fp for raw in request.messages]


def read_reply(entry: Entry) -> bytes:
    reader = MESSAGES.create_reply_reader(False)
    reader.feed(json.dumps(entry["body"]).encode())
    message = reader.finish().message
    assert message is not None
    return MESSAGES.read_item(message, KEY).fp


@needs_recordings
def test_what_goes_on_extends() -> None:
    """Where an agent folds its history, its first units differ; that is no echo."""
    before: dict[str, list[bytes]] = {}
    said: dict[str, bytes] = {}
    echoes, served = 0, set[int]()
    for session, entry in list_recorded():
        if entry["request"].startswith("REPLY"):
            if entry["n"] in served:
                said[session] = read_reply(entry)
            continue
        request, headers = parse(entry)
        if MESSAGES.classify(request, headers).treatment == "off":
            continue
        served.add(entry["n"])
        sent = read_fingerprints(request)
        known = before.get(session, [])
        if known and len(sent) > len(known) and sent[0] == known[0] and session in said:
            assert (sent[: len(known)], sent[len(known)]) == (known, said[session]), entry["n"]
            echoes += 1
        before[session] = sent
    assert echoes == 20


@needs_recordings
def test_a_recorded_body_is_written_again() -> None:
    """With all its messages, it stays by the byte."""
    count = 0
    for _, entry in list_recorded():
        if not entry["request"].startswith("REPLY"):
            request, _ = parse(entry)
            items = [MESSAGES.read_item(raw, KEY) for raw in request.messages]
            tail = [Piece(i.raw, i.role, i.calls, i.answers, 1, 1, n) for n, i in enumerate(items)]
            body = MESSAGES.rewrite_body(request, "", "", tail, "blocks")
            assert json.loads(body) == entry["body"]
            count += 1
    assert count == 61


def test_it_has_no_plain_form_and_no_look_ups() -> None:
    request = MESSAGES.parse_request(b'{"messages":[]}')
    assert MESSAGES.write_plain_body(request, request.body) is None
    assert MESSAGES.recall is None
