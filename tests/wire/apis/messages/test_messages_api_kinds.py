"""Which requests memory serves as a turn, stores only, or leaves alone."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.common.reasons import Reason
from om_proxy.wire.apis.api import TURN, Kind
from om_proxy.wire.apis.messages.messages_api import MESSAGES

MARK = {"cache_control": {"type": "ephemeral"}}
SESSION = (b"x-claude-code-session-id", b"s")
MANAGED = {"context_management": {"edits": []}}


def text(words: str, *, marked: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": words} | (MARK if marked else {})


def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


ASKS = [said("user", text("q"))]
MARKED_END = [
    said("user", text("q")),
    said("assistant", text("a")),
    said("user", text("r", marked=True)),
]
MARKED_SYSTEM = [said("user", text("q")), said("system", text("now", marked=True))]
SIDE = [
    said("user", text("q", marked=True)),
    said("assistant", text("a")),
    said("user", text("btw")),
]
NAMED = [said("user", {"type": "tool_use", "input": MARK}), said("user", text("btw"))]
COMPACTED = [said("user", text("q")), said("assistant", {"type": "compaction", "content": "all"})]
QUOTED = [said("user", text('a "compaction"')), said("user", {"type": "x", "y": "compaction"})]

OFF_SIDE = Kind("off", Reason.SIDE_REQUEST)
AGENTS = Kind("raw", Reason.CODING_AGENT)


@pytest.mark.parametrize(
    ("messages", "members", "headers", "kind"),
    [
        (ASKS, {}, [], TURN),
        (SIDE, {}, [], TURN),
        (ASKS, {"thread": "t"}, [], Kind("off", Reason.SERVER_STATE)),
        (ASKS, {"thread": {"id": "t"}}, [SESSION], Kind("off", Reason.SERVER_STATE)),
        (ASKS, {"thread": None, "container": "c", **MANAGED}, [], TURN),
        (ASKS, {"compaction": {"type": "auto"}}, [], Kind("off", Reason.COMPACTION)),
        (COMPACTED, {}, [], Kind("raw", Reason.COMPACTION)),
        (QUOTED, {}, [], TURN),
        (ASKS, {}, [SESSION], OFF_SIDE),
        (ASKS, MANAGED, [SESSION], AGENTS),
        (MARKED_END, MANAGED, [SESSION], AGENTS),
        (MARKED_SYSTEM, MANAGED, [SESSION], AGENTS),
        (SIDE, MANAGED, [SESSION], OFF_SIDE),
        (NAMED, MANAGED, [SESSION], AGENTS),
        (COMPACTED, MANAGED, [SESSION], AGENTS),
        ([], MANAGED, [SESSION], AGENTS),
    ],
)
def test_kinds(messages: Any, members: Any, headers: Any, kind: Kind) -> None:
    request = MESSAGES.parse_request(orjson.dumps({"model": "m", **members, "messages": messages}))
    assert MESSAGES.classify(request, headers) == kind


def test_a_sub_agent_is_named_by_its_header() -> None:
    assert MESSAGES.find_sub_agent([SESSION, (b"x-claude-code-agent-id", b"a7")]) == b"a7"
    assert MESSAGES.find_sub_agent([SESSION]) == b""
