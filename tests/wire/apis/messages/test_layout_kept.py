"""What stays of a covered history: system messages, and the steps that loaded tools."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.apis.messages.test_layout import HINT, A, Q, R, call, result, said, text, write


def system(words: str, **members: Any) -> dict[str, Any]:
    return {"role": "system", "content": words, **members}


def reference(*names: str) -> list[dict[str, Any]]:
    return [{"type": "tool_reference", "tool_name": name} for name in names]


def load(call_id: str, *names: str) -> list[dict[str, Any]]:
    """The messages of a step by which a client loads tools."""
    return [
        said("assistant", call(call_id), call("other")),
        said("user", result(call_id, content=reference(*names)), result("other"), text("Loaded.")),
    ]


def loaded(call_id: str, *names: str) -> list[dict[str, Any]]:
    calls, results = load(call_id, *names)
    return [calls, said("user", *results["content"][:2])]


def search(*names: str) -> dict[str, Any]:
    """The reply in which a server loads tools."""
    found = {"type": "tool_search_tool_search_result", "tool_references": reference(*names)}
    return said(
        "assistant", {"type": "tool_search_tool_result", "tool_use_id": "s", "content": found}
    )


@pytest.mark.parametrize(
    ("covered", "kept"),
    [
        ([Q, system("one"), A, Q, system("two"), A], ["one", "two"]),
        ([Q, system("at 12:00"), A, Q, system("at 12:30"), A], ["at 12:30"]),
        ([Q, system("one"), A, Q, system("two"), system("one"), A], ["two", "one"]),
        ([Q, system("one", clear_at="next_user_message"), A], []),
        ([Q, system("one", clear_at="never"), A], ["one"]),
        ([Q, said("user", text('"system"')), said("system_", text("x")), A], []),
        ([Q, *(system("x" * n) for n in range(1, 41)), A], ["x" * n for n in range(9, 41)]),
    ],
)
def test_covered_system_messages_stay(covered: list[Any], kept: list[str]) -> None:
    """Right behind the first user message; what the request asks stays the last."""
    written = write([*covered, R], [len(covered)])
    assert written["messages"][-1] == R
    found = [message["content"] for message in written["messages"] if message["role"] == "system"]
    assert found == kept
    assert (written["messages"][0] == HINT) == bool(kept)


def test_a_system_message_of_the_tail_stands_once() -> None:
    messages = [Q, system("one"), A, Q, system("two"), A, R]
    written = write(messages, [3, 4, 5, 6])["messages"]
    assert written == [HINT, system("one"), *messages[3:]]


def test_without_a_hint_they_follow_the_users_first_message() -> None:
    assert write([Q, system("one"), A, R, A, Q], [3, 4, 5], hint="")["messages"] == [
        R,
        system("one"),
        A,
        Q,
    ]


@pytest.mark.parametrize(
    ("covered", "kept"),
    [
        ([Q, *load("a", "t1"), A], loaded("a", "t1")),
        ([Q, search("t1"), A], [search("t1")]),
        (
            [Q, *load("a", "t1"), A, Q, *load("b", "t2"), A],
            [*loaded("a", "t1"), *loaded("b", "t2")],
        ),
        ([Q, *load("a", "t1"), A, Q, *load("b", "t1"), A], loaded("b", "t1")),
        (
            [Q, *load("a", "t1", "t2"), A, Q, search("t1"), A],
            [*loaded("a", "t1", "t2"), search("t1")],
        ),
        (
            [Q, said("assistant", call("a")), said("user", result("a", content="tool_reference"))],
            [],
        ),
        ([Q, said("user", text('"tool_reference"')), A], []),
        ([said("user", result("a", content=reference("t"))), A], []),
    ],
)
def test_steps_that_loaded_tools_stay(covered: list[Any], kept: list[Any]) -> None:
    """In front of the tail, with all their results and nothing else."""
    units = sum(
        max(
            1,
            sum(b["type"] == "tool_result" for b in m["content"])
            + any(b["type"] != "tool_result" for b in m["content"]),
        )
        for m in covered
    )
    written = write([*covered, R], [units])["messages"]
    assert written == ([HINT, *kept, R] if kept else [R])


def test_of_many_loaded_tools_the_newest_stay() -> None:
    covered = [Q, *(search(f"t{n}") for n in range(30)), A]
    written = write([*covered, R], [len(covered)])["messages"]
    assert written == [HINT, *(search(f"t{n}") for n in range(14, 30)), R]


def test_a_tool_that_the_tail_loads_is_not_loaded_twice() -> None:
    messages = [Q, search("t1"), A, Q, search("t1"), R]
    assert write(messages, [3, 4, 5])["messages"] == messages[3:]
