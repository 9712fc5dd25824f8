"""References are read as the items that they name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from om_proxy.wire.apis.responses.responses_api import ResponsesApi
from tests.wire.apis.responses.samples import (
    KEY,
    answered,
    called,
    read,
    reasoned,
    said,
    write_unit,
)

REFERENCES = ResponsesApi()
THOUGHT = reasoned(1, encrypted_content="E")
CALL = called("call_1", id="fc_1")
ANSWER = {"id": "msg_1", "type": "message", **said("two", "assistant")}


def refer(id_: Any, **members: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": id_, **members}


def read_raw(item: dict[str, Any]) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("items", "start", "ids"),
    [
        ("hi", 0, set()),
        ([said("one"), ANSWER, said("msg_1")], 0, set()),
        ([said("one"), refer("rs_1"), refer("msg_1"), said("two")], 0, {"rs_1", "msg_1"}),
        ([said("one"), refer("rs_1"), CALL, answered("call_1"), refer("msg_1")], 3, {"msg_1"}),
        ([refer("a"), said("one")], 1, set()),
        ([refer("a"), said("one")], 2, set()),
        ([{"id": "msg_1"}, said("one")], 0, {"msg_1"}),
        ([refer(7), refer(None), refer(""), said("one")], 0, set()),
        ([{"type": "unknown", "id": "x"}, said("one")], 0, set()),
    ],
)
def test_what_a_request_refers_to(items: Any, start: int, ids: set[str]) -> None:
    assert REFERENCES.list_references(read(items), start) == ids


def test_a_step_with_references_is_the_step() -> None:
    """Its fingerprint and its stored bytes are those of the reply."""
    stored = write_unit(THOUGHT, CALL)
    ids = {"rs_1", "fc_1", "msg_1"}
    items = REFERENCES.find_items(stored, ids)
    assert items == {"rs_1": read_raw(THOUGHT), "fc_1": read_raw(CALL)}
    request = read([said("one"), refer("rs_1"), {"id": "fc_1"}, answered("call_1")])
    assert len(request.messages) == 3
    put = REFERENCES.put_in_items(request.messages[1], items)
    assert put == stored
    assert REFERENCES.read_item(put, KEY).calls == ("call_1",)


def test_what_is_no_reference_stays() -> None:
    raw = write_unit(ANSWER, {**CALL, "id": "fc_1"})
    assert REFERENCES.put_in_items(raw, {"msg_1": b"{}", "fc_1": b"{}"}) is raw
    assert REFERENCES.put_in_items(b'["hi"]', {}) == b'["hi"]'
    assert REFERENCES.find_items(b'{"role":"user"}', {"x"}) == {}
