"""Which requests memory serves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from om_proxy.common.reasons import Reason
from om_proxy.memory.transcript.sent_history import MIN_DIGESTED_BYTES, recognise
from om_proxy.wire.apis.api import TURN, Kind
from om_proxy.wire.apis.responses.responses_api import RESPONSES
from tests.wire.apis.responses.samples import read, said

TALK = [said("one"), said("two", "assistant"), said("three")]
COMPACTION = {"type": "compaction", "encrypted_content": "E"}
REFERENCE = {"type": "item_reference", "id": "rs_1"}
STATE = Kind("off", Reason.SERVER_STATE)
COMPACTED = Kind("raw", Reason.COMPACTION)
SIDE = Kind("off", Reason.SIDE_REQUEST)
AGENT = Kind("raw", Reason.CODING_AGENT)


@pytest.mark.parametrize(
    ("items", "members", "kind"),
    [
        ("hi", {}, TURN),
        (TALK, {"store": False, "include": ["x"], "prompt": {"id": "p"}}, TURN),
        (TALK, {"previous_response_id": "resp_1"}, TURN),
        ("hi", {"conversation": {"id": "conv_1"}}, STATE),
        ("hi", {"conversation": "conv_1"}, STATE),
        ([*TALK, REFERENCE], {}, TURN),
        ([REFERENCE, *TALK], {}, TURN),
        ("item_reference", {}, TURN),
        ([{**said("x"), "name": "item_reference"}], {}, TURN),
        ("hi", {"previous_response_id": None, "conversation": None, "background": False}, TURN),
        ("hi", {"previous_response_id": ""}, TURN),
        ("hi", {"background": True}, Kind("off", Reason.BACKGROUND)),
        ([*TALK, {"type": "compaction_trigger"}], {}, Kind("off", Reason.COMPACTION)),
        (TALK, {"compaction": {}}, Kind("off", Reason.COMPACTION)),
        ([COMPACTION, *TALK], {}, COMPACTED),
        ([said("compaction"), {**said("x"), "name": "compaction"}], {}, TURN),
    ],
)
def test_what_the_server_holds_has_no_memory(
    items: Any, members: dict[str, Any], kind: Kind
) -> None:
    assert RESPONSES.classify(read(items, **members), ()) == kind


METADATA = b"x-codex-turn-metadata"


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ([(b"user-agent", b"codex")], TURN),
        ([(b"originator", b"codex_exec")], AGENT),
        ([(b"originator", b"Codex Desktop")], AGENT),
        ([(b"originator", b"codex_exec"), (METADATA, b'{"request_kind":"turn"}')], AGENT),
        ([(METADATA, b"{}")], TURN),
        ([(METADATA, b"no JSON")], TURN),
        ([(METADATA, b'{"request_kind":"prewarm"}')], SIDE),
        ([(b"originator", b"codex_exec"), (METADATA, b'{"request_kind":"title"}')], SIDE),
        ([(b"x-openai-memgen-request", b"1")], SIDE),
        ([(b"x-codex-guardian", b"1")], SIDE),
    ],
)
def test_coding_agents_are_known_by_headers(headers: list[tuple[bytes, bytes]], kind: Kind) -> None:
    assert RESPONSES.classify(read(TALK), headers) == kind


def test_an_agent_that_compacts() -> None:
    headers = [(b"originator", b"codex_exec")]
    assert RESPONSES.classify(read([COMPACTION, *TALK]), headers) == AGENT
    trigger = read([*TALK, {"type": "compaction_trigger"}])
    assert RESPONSES.classify(trigger, headers) == Kind("off", Reason.COMPACTION)


def test_what_is_known_is_searched_too() -> None:
    items = [said("x" * MIN_DIGESTED_BYTES), COMPACTION, *map(said, "abcdef")]
    first = read(items)
    known = RESPONSES.build_split(first, recognise((), first.messages).digests, 0)
    assert known is not None
    body = json.loads(first.body)
    body["input"].append(said("more"))
    grown = RESPONSES.parse_request(json.dumps(body, separators=(",", ":")).encode(), known)
    assert len(grown.frame) < len(grown.body)
    assert RESPONSES.classify(grown, ()) == COMPACTED


@pytest.mark.parametrize(
    ("headers", "agent"),
    [
        ([(b"x-codex-parent-thread-id", b"p"), (b"thread-id", b"t")], b"t"),
        ([(b"x-codex-parent-thread-id", b"p")], b""),
        ([(b"thread-id", b"t")], b""),
    ],
)
def test_a_sub_agent_is_named_beside_its_parent(
    headers: list[tuple[bytes, bytes]], agent: bytes
) -> None:
    assert RESPONSES.find_sub_agent(headers) == agent
