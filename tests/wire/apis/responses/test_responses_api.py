"""The API as one value, beside recordings of real clients: what goes on extends what was sent before,
and its first new unit is the reply.

OM_TEST_CAPTURES names a folder of recordings: lists of requests and of the replies to them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.responses.responses_api import RESPONSES
from tests.wire.apis.responses.samples import KEY, list_pieces

FOLDER = os.environ.get("OM_TEST_CAPTURES", "")
Entry = dict[str, Any]


def list_recorded() -> Iterator[tuple[str, Entry]]:
    """List requests and replies in order, each with its session."""
    files = sorted(Path(FOLDER).glob("*.json")) if FOLDER else []
    entries = [(file.stem, entry) for file in files for entry in json.loads(file.read_bytes())]
    sessions: dict[int, str] = {}
    for name, entry in sorted(entries, key=lambda named: named[1]["n"]):
        if entry["request"].split("?")[0].endswith("/v1/responses") and entry["body"]:
            session = entry["headers"].get("thread-id") or name
            yield sessions.setdefault(entry["n"], session), entry


def parse(entry: Entry) -> tuple[Request, list[tuple[bytes, bytes]]]:
    headers = [(k.lower().encode(), v.encode()) for k, v in entry["headers"].items()]
    return RESPONSES.parse_request(json.dumps(entry["body"]).encode()), headers


def read_fingerprints(request: Request) -> list[bytes]:
    return [RESPONSES.read_item(raw, KEY).fp for raw in request.messages]


def read_reply(entry: Entry) -> bytes:
    reader = RESPONSES.create_reply_reader(False)
    reader.feed(json.dumps({"status": "completed", "output": entry["body"]}).encode())
    message = reader.finish().message
    assert message is not None
    return RESPONSES.read_item(message, KEY).fp


@pytest.mark.skipif(
    not FOLDER, reason="NO CLIENT'S RECORDING IS REPLAYED: OM_TEST_CAPTURES names none"
)
def test_what_goes_on_extends() -> None:
    """Where a client sends less, or a summary, its first units differ; that is no echo."""
    before: dict[str, list[bytes]] = {}
    said: dict[str, bytes] = {}
    extended = 0
    for session, entry in list_recorded():
        if entry["request"].startswith("REPLY"):
            said[session] = read_reply(entry)
            continue
        request, headers = parse(entry)
        kind = RESPONSES.classify(request, headers)
        fps = read_fingerprints(request)
        known = before.get(session)
        if kind.treatment == "off":
            continue
        if known and len(fps) > len(known) and fps[0] == known[0]:
            assert (fps[: len(known)], fps[len(known)]) == (known, said[session]), entry["n"]
            extended += 1
        before[session] = fps
    assert extended == 14


@pytest.mark.skipif(
    not FOLDER, reason="NO CLIENT'S RECORDING IS REPLAYED: OM_TEST_CAPTURES names none"
)
def test_recorded_bodies_keep_their_items() -> None:
    """Written again with all of its own units, each says what it said, but for the reply that it
    follows: its units stand in the body instead."""
    for _, entry in list_recorded():
        if not entry["request"].startswith("REPLY"):
            request, _ = parse(entry)
            body = RESPONSES.rewrite_body(request, "", "", list_pieces(request), "blocks")
            entry["body"].pop("previous_response_id", None)
            assert json.loads(body) == entry["body"]
