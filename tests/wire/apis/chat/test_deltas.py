"""Deltas without end: each is read once, and the message is that of the plain rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.wire.apis.chat.deltas import (
    CALL_VALUES,
    MEMBER_VALUES,
    JsonValueBudget,
    MessageBuilder,
    ReplyTooLarge,
)
from tests.support.counting import TIMES, count_lines_run, measure_cpu_s

Delta = dict[str, Any]


def built(deltas: list[Delta]) -> dict[str, Any]:
    builder = MessageBuilder()
    for delta in deltas:
        builder.add(delta)
    return builder.message()


def call(**members: Any) -> Delta:
    return {"tool_calls": [members]}


SHAPES: dict[str, Callable[[int], Delta]] = {
    "text": lambda i: {"content": "word ", "reasoning": "word "},
    "a part each": lambda i: {
        "reasoning_details": [{"type": "reasoning.text", "text": "word", "index": 0}]
    },
    "a call each": lambda i: call(index=i, id=f"c{i}", function={"name": "f", "arguments": "{}"}),
    "a call each, by id": lambda i: call(id=f"c{i}", function={"name": "f", "arguments": "{}"}),
    "a call each, under one index": lambda i: call(
        index=0, id=f"c{i}", function={"name": "f", "arguments": "{}"}
    ),
    "a call each, by name": lambda i: call(function={"name": "f", "arguments": "{}"}),
    "the first call again": lambda i: call(
        id=f"c{i}" if i % 2 else "c1", function={"arguments": "{}"}
    ),
    "a name in pieces": lambda i: call(index=0, id="c", function={"name": "ab"[i % 2]}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_deltas_take_steps_in_proportion(shape: str) -> None:
    """Eight times as many take at most nine times as many steps."""
    shorter, longer = ([SHAPES[shape](i) for i in range(count)] for count in (200, 200 * TIMES))
    assert count_lines_run(partial(built, longer)) <= (TIMES + 1) * count_lines_run(
        partial(built, shorter)
    )


@pytest.mark.parametrize("shape", ["text", "a part each", "a name in pieces"])
def test_deltas_take_time_in_proportion(shape: str) -> None:
    """What copying does is no step of Python's: eight times as many take less than the 64 times of
    a square."""
    shorter, longer = ([SHAPES[shape](i) for i in range(count)] for count in (2_000, 2_000 * TIMES))
    assert measure_cpu_s(partial(built, longer)) < 3 * TIMES * max(
        measure_cpu_s(partial(built, shorter)), 0.002
    )


def test_lists_are_the_builder_s_own() -> None:
    """It grows neither what it was given nor what it gave."""
    deltas = [
        {"parts": [1]},
        {"parts": [2], "function_call": {"parts": [3]}},
        {"function_call": {"parts": [4]}},
    ]
    given, builder = deepcopy(deltas), MessageBuilder()
    messages = []
    for delta in deltas:
        builder.add(delta)
        messages.append(builder.message())
    builder.add(deltas[-1])
    assert deltas == given
    assert [message["parts"] for message in messages] == [[1], [1, 2], [1, 2]]
    assert [message.get("function_call") for message in messages] == [
        None,
        {"parts": [3]},
        {"parts": [3, 4]},
    ]


class Plain(MessageBuilder):
    """The rules for calls, told by looking through them."""

    def _find_call(self, delta: Mapping[str, Any]) -> Any:
        index, id_, function = delta.get("index"), delta.get("id"), delta.get("function")
        named = isinstance(function, dict) and bool(function.get("name"))
        if type(index) is int:
            call = next((call for call in reversed(self._calls) if call.index == index), None)
            begins = call is not None and bool(id_ and call.id and id_ != call.id) and named
            return None if begins else call
        if id_:
            return next((call for call in self._calls if call.id == id_), None)
        last = self._calls[-1] if self._calls else None
        return None if last is not None and named and last.has_name else last


MEMBERS = {
    "index": st.sampled_from([0, 1, 2, "0", True]),
    "id": st.sampled_from(["", "a", "b", "c", None]),
    "function": st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["", "f", "g"]),
            "arguments": st.sampled_from(["{", "}"]),
        },
    ),
    "x": st.lists(st.integers(0, 9), max_size=2),
}
CALLS = st.lists(st.fixed_dictionaries({}, optional=MEMBERS), max_size=3)


@given(st.lists(CALLS, max_size=10))
def test_calls_are_found_as_the_rules_say(calls: list[list[Delta]]) -> None:
    """By the newest of an index, by the first of an id whenever that was said, else the last."""
    plain = Plain()
    for each in calls:
        plain.add({"tool_calls": each})
    assert built([{"tool_calls": each} for each in calls]) == plain.message()


@pytest.mark.parametrize("id_", [7, 1.5, True])
def test_a_number_is_an_id(id_: Any) -> None:
    """Servers that count their calls are understood."""
    deltas = [
        call(id=id_, function={"name": "f"}),
        call(id="b", function={"name": "g"}),
        call(id=id_, x="y"),
    ]
    assert [each.get("x") for each in built(deltas)["tool_calls"]] == ["y", None]


@pytest.mark.parametrize("id_", [[1], {"a": 1}])
def test_what_is_no_id_names_no_call(id_: Any) -> None:
    """A name begins one, anything else goes on with the last."""
    deltas = [
        call(id=id_, function={"name": "f"}),
        call(id=id_, x="y"),
        call(id=id_, function={"name": "g"}),
    ]
    assert [each.get("x") for each in built(deltas)["tool_calls"]] == ["y", None]


@pytest.mark.parametrize(
    ("delta", "values"),
    [
        ({"content": "x"}, MEMBER_VALUES),
        ({"tool_calls": [{"index": 0, "id": "c"}]}, CALL_VALUES + MEMBER_VALUES),
        ({"tool_calls": [{"index": 0}, {"index": 0}, {"index": 0}, 7]}, CALL_VALUES + 4),
        ({"function_call": {"name": "f", "arguments": ""}}, 3 * MEMBER_VALUES),
        ({"parts": [{"a": 1, "b": [1, 2, "3"]}, [], {}, "x"]}, MEMBER_VALUES + 4 + 2 + 3 + 1 + 1),
        ({"x": {"y": {}}}, MEMBER_VALUES + 2),
    ],
)
def test_what_is_kept_takes_room(delta: Delta, values: int) -> None:
    """Of all builders that share it; with one value less there is no room for it."""
    budget = JsonValueBudget(2 * values)
    MessageBuilder(budget).add(delta)
    builder = MessageBuilder(budget)
    builder.add(delta)
    with pytest.raises(ReplyTooLarge):
        builder.add({"one more": "x"})
    with pytest.raises(ReplyTooLarge):
        MessageBuilder(JsonValueBudget(values - 1)).add(delta)


@pytest.mark.parametrize(
    "shape", [{"content": "x", "reasoning": "y"}, call(index=0, function={"arguments": "x"})]
)
def test_pieces_of_text_take_no_room(shape: Delta) -> None:
    """What goes on is as long as it likes."""
    builder = MessageBuilder(JsonValueBudget(CALL_VALUES + 3 * MEMBER_VALUES))
    for _ in range(1_000):
        builder.add(shape)
    assert "x" * 1_000 in str(builder.message())


def test_what_is_deep_is_counted() -> None:
    """However deep: nothing is called for each level of it."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    JsonValueBudget().spend_nested(deep)
    with pytest.raises(ReplyTooLarge):
        JsonValueBudget(100_000).spend_nested(deep)


def text_part(text: str, **more: Any) -> Delta:
    return {"type": "text", "text": text, **more}


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("name", "values", "merged"),
    [
        ("content", ["a", [THINKING], "b", "c"], [text_part("a"), THINKING, text_part("bc")]),
        ("content", ["", [THINKING], "", [THINKING]], [THINKING, THINKING]),
        ("content", [[text_part("a")], [text_part("b")], "c"], "abc"),
        ("content", ["a", THINKING, text_part("b")], [text_part("a"), THINKING, text_part("b")]),
        ("content", ["a", ["b"], 5], "ab5"),
        ("content", [[text_part("a", index=0)], "b"], [text_part("a", index=0), text_part("b")]),
        ("reasoning", ["a", "b", ["c"], "d", "e", {"f": "g"}], ["ab", "c", "de", {"f": "g"}]),
        ("odd", [{"a": "b", "c": [1]}, {"a": "d", "c": [2], "index": 3}], {"a": "bd", "c": [1, 2], "index": 3}),
        ("odd", [{"a": "b"}, {"a": "b"}], {"a": "b"}),
        ("odd", [{"a": "b"}, [{"c": "d"}], {"e": "f"}], [{"a": "b"}, {"c": "d"}, {"e": "f"}]),
        ("odd", [1, 2, 2.5, "a"], [2.5, "a"]),
        ("function_call", [{"arguments": {}}, {"arguments": '{"a":'}, {"arguments": "1}"}], {"arguments": '{"a":1}'}),
        ("function_call", [{"arguments": {"a": 1}}, {"arguments": {"b": 2}}], {"arguments": {"a": 1, "b": 2}}),
        ("function_call", ["a", {"arguments": "b"}], ["a", {"arguments": "b"}]),
    ],
)  # fmt: skip
def test_a_member_may_change_its_kind(name: str, values: list[Any], merged: Any) -> None:
    """All that it said stays, in order; in a content, texts side by side are one."""
    assert built([{name: value} for value in values])[name] == merged


def test_one_call_may_stand_without_a_list() -> None:
    """It is put together like any other."""
    deltas = [{"tool_calls": {"id": "c", "function": {"name": "f"}}}, call(id="c", x="y")]
    assert built(deltas)["tool_calls"] == [{"id": "c", "function": {"name": "f"}, "x": "y"}]


@st.composite
def streams_of_any_kinds(draw: st.DrawFn) -> tuple[list[Delta], list[str]]:
    """Deltas whose members change their kinds as they like, and every word in them, each different."""
    words: list[str] = []

    def word() -> str:
        words.append(f"<{len(words)}>")
        return words[-1]

    def value(depth: int) -> Any:
        kind = draw(
            st.sampled_from(["text", "text", "list", "object", "part", "number", "nothing"])
        )
        if kind == "text" or depth > 2:
            return word()
        if kind == "list":
            return [value(depth + 1) for _ in range(draw(st.integers(0, 2)))]
        if kind == "object":
            names = draw(
                st.lists(st.sampled_from(["a", "b", "arguments"]), max_size=2, unique=True)
            )
            return {name: value(depth + 1) for name in names}
        if kind == "part":
            return {"type": "text", "text": word()}
        return 7 if kind == "number" else None

    names = st.sampled_from(["content", "reasoning", "audio", "function_call", "odd"])
    count = draw(st.integers(1, 6))
    deltas = [{draw(names): value(0) for _ in range(draw(st.integers(1, 2)))} for _ in range(count)]
    return deltas, words


@given(streams_of_any_kinds())
def test_nothing_that_was_received_is_dropped(stream: tuple[list[Delta], list[str]]) -> None:
    """Whatever kind a member has at any point, each word is in the message."""
    deltas, words = stream
    given_words = [word for word in words if word in str(deltas)]
    message = str(built(deepcopy(deltas)))
    assert [word for word in given_words if word not in message] == []
