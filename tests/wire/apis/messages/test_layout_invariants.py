"""What holds of every prompt of the Messages API, whatever is covered and wherever the rest comes
from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import orjson
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.messages.elements import list_marks
from om_proxy.wire.apis.messages.messages_api import MESSAGES
from om_proxy.wire.apis.messages.reading import read_chat_message
from om_proxy.wire.apis.registry import CHAT

KEY = b"k" * 32
MARK = {"type": "ephemeral"}
Message = dict[str, Any]


class Conversation(NamedTuple):
    """A conversation as a client with all of it sends it."""

    messages: list[Message]
    unit_count: int
    cuts: list[int]  # units before which a tail may begin: no step is cut in two


class Builder:
    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.messages: list[Message] = []
        self.units = 0
        self.cuts = [0]

    def say(self, role: str, *blocks: Message) -> None:
        self.messages.append({"role": role, "content": list(blocks)})

    def text(self) -> Message:
        return {"type": "text", "text": f"<{len(self.messages)} {self.units}>"}

    def ask(self) -> None:
        self.say("user", self.text())
        self.units += 1
        self.cuts.append(self.units)
        if self.draw(st.integers(0, 4)) == 0:
            self.say("system", self.text())
            self.units += 1
            self.cuts.append(self.units)

    def look(self) -> None:
        ids = [f"c{self.units}-{n}" for n in range(self.draw(st.integers(1, 3)))]
        thought = {"type": "thinking", "thinking": "hm", "signature": f"S{self.units}"}
        calls = [{"type": "tool_use", "id": i, "name": "n", "input": {"x": i}} for i in ids]
        loads = self.draw(st.integers(0, 3)) == 0
        content = [{"type": "tool_reference", "tool_name": ids[0]}] if loads else "x"
        self.say("assistant", thought, *calls)
        results = [{"type": "tool_result", "tool_use_id": i, "content": content} for i in ids]
        says = [self.text()] if self.draw(st.booleans()) else []
        self.say("user", *results, *says)
        self.units += 1 + len(ids)
        self.cuts.append(self.units)
        self.units += len(says)

    def answer(self) -> None:
        self.say("assistant", self.text())
        self.units += 1
        self.cuts.append(self.units)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    built = Builder(draw)
    for _ in range(draw(st.integers(1, 5))):
        built.ask()
        for _ in range(draw(st.integers(0, 2))):
            built.look()
        built.answer()
    cuts = list(built.cuts)  # what the request asks is part of every tail
    built.ask()
    return Conversation(built.messages, built.units, cuts)


class Prompt(NamedTuple):
    sent: list[Message]
    tail: list[Piece]
    body: Message
    raw: bytes


def write_prompt(talk: Conversation, cut: int, first_sent: int, foreign: set[int]) -> Prompt:
    """Write the prompt of a client that sends its messages from `first_sent` on, and whose tail
    begins at the unit `cut`. `foreign`: units that are stored as chat messages."""
    whole = MESSAGES.parse_request(orjson.dumps({"messages": talk.messages}))
    sent = talk.messages[first_sent:]
    request = MESSAGES.parse_request(
        orjson.dumps({"model": "m", "system": "s", "tools": [{"name": "n"}], "messages": sent})
    )
    unsent = len(whole.messages) - len(request.messages)
    pieces = []
    for unit in range(cut, len(whole.messages)):
        raw = whole.messages[unit]
        item = MESSAGES.read_item(raw, KEY)
        if unit < unsent and unit in foreign:
            raw = orjson.dumps(read_chat_message(raw))
            item = CHAT.read_item(raw, KEY)
        index = unit - unsent if unit >= unsent else -1
        pieces.append(
            Piece(raw, item.role, item.calls, item.answers, 1, unit + 1, index, api=item.api)
        )
    body = MESSAGES.rewrite_body(request, "B", "H", pieces, "blocks")
    return Prompt(sent, pieces, orjson.loads(body), body)


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    talk = draw(conversations())
    cut = draw(st.sampled_from(talk.cuts))
    steps = [
        n
        for n, m in enumerate(talk.messages)
        if m["role"] == "user" and "tool_use_id" not in m["content"][0]
    ]
    first_sent = draw(st.sampled_from([0, 0, *steps]))
    foreign = draw(st.sets(st.integers(0, talk.unit_count)))
    return write_prompt(talk, cut, first_sent, foreign)


def blocks(message: Message, kind: str) -> list[Message]:
    return [
        block for block in message["content"] if isinstance(block, dict) and block["type"] == kind
    ]


def ids(message: Message | None, role: str, kind: str, name: str) -> list[str]:
    if message is None or message["role"] != role or isinstance(message["content"], str):
        return []
    return [block[name] for block in blocks(message, kind)]


@given(prompts())
def test_each_step_is_whole_and_in_order(prompt: Prompt) -> None:
    """Each call has all its results in the message right behind it, where they come first."""
    for message, behind in pairwise([*prompt.body["messages"], None]):
        calls = ids(message, "assistant", "tool_use", "id")
        results = ids(behind, "user", "tool_result", "tool_use_id")
        assert sorted(calls) == sorted(results)
        if results:
            assert all(b["type"] == "tool_result" for b in behind["content"][: len(results)])


@given(prompts())
def test_thoughts_are_whole_or_absent(prompt: Prompt) -> None:
    for message in prompt.body["messages"]:
        if message["role"] == "assistant" and blocks(message, "thinking"):
            assert message["content"][0]["type"] == "thinking"
            assert blocks(message, "thinking")[0]["signature"]


@given(prompts())
def test_the_first_message_is_the_users_and_the_last_what_was_asked(prompt: Prompt) -> None:
    messages = prompt.body["messages"]
    assert messages[0]["role"] == "user"
    asked = 1 + max((n for n, m in enumerate(prompt.sent) if m["role"] == "assistant"), default=-1)
    assert messages[-len(prompt.sent[asked:]) :] == prompt.sent[asked:]


@given(prompts())
def test_nothing_stands_twice_or_is_empty(prompt: Prompt) -> None:
    written = orjson.dumps(prompt.body["messages"])
    texts = [
        block["text"]
        for message in prompt.body["messages"]
        if isinstance(message["content"], list)
        for block in blocks(message, "text")
    ]
    assert all(text.strip() for text in texts)
    assert len(set(texts)) == len(texts)
    assert written.count(b'"tool_use"') == len(set(_list_all_ids(prompt)))


def _list_all_ids(prompt: Prompt) -> list[str]:
    found = [ids(m, "assistant", "tool_use", "id") for m in prompt.body["messages"]]
    return [call_id for some in found for call_id in some]


@given(conversations(), conversations(), st.data())
def test_between_two_activations_the_beginning_is_the_same(
    talk: Conversation, more: Conversation, data: st.DataObject
) -> None:
    """The same tail, and what came since behind it."""
    cut = data.draw(st.sampled_from(talk.cuts))
    shifted = orjson.loads(
        orjson.dumps(more.messages).replace(b'"c', b'"d').replace(b"<", b"<more ")
    )
    answer = {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}
    longer = [*talk.messages, answer, *shifted]
    before = write_prompt(talk, cut, 0, set())
    after = write_prompt(Conversation(longer, 0, []), cut, 0, set())
    count = len(before.body["messages"])
    assert after.body["messages"][:count] == before.body["messages"]
    assert after.body["system"] == before.body["system"]


@given(
    st.lists(st.sampled_from(["", "5m", "1h"]), max_size=4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.booleans(),
)
def test_marks_are_four_at_most_and_the_long_ones_first(
    ttls: list[str], in_tools: int, in_system: int, has_covered: bool
) -> None:
    """If the client's own are so."""
    ttls.sort(key=lambda ttl: ttl != "1h")
    marks = [{"cache_control": MARK | ({"ttl": ttl} if ttl else {})} for ttl in ttls]
    tools, rest = marks[:in_tools], marks[in_tools:]
    system, behind = rest[:in_system], rest[in_system:]
    said = {"type": "text", "text": "q"}
    members = {
        "tools": [{"name": "n", **mark} for mark in tools],
        "system": [said | mark for mark in system] or "s",
        "messages": [{"role": "user", "content": [said | mark for mark in behind] or "q"}],
    }
    if has_covered:
        members["messages"] = [{"role": "user", "content": "old"}, *members["messages"]]
    request = MESSAGES.parse_request(orjson.dumps(members))
    piece = Piece(b"", "user", (), None, 1, 1, int(has_covered))
    body = orjson.loads(MESSAGES.rewrite_body(request, "B", "", [piece], "blocks"))
    parts = [*body["tools"], *body["system"], *body["messages"]]
    found = [
        orjson.loads(mark).get("ttl", "5m")
        for part in parts
        for mark in list_marks(orjson.dumps(part))
    ]
    assert len(found) == len(marks) + (0 < len(marks) < 4)
    assert found == sorted(found)  # "1h" before "5m"
