"""Where memory's texts go among the client's messages."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.prompt.context import Layout
from om_proxy.wire.apis.chat.layout import MAX_WRITTEN_BYTES, assemble
from tests.support.counting import count_lines_run
from tests.support.weighing import measure_kept_bytes

USER = b'{"role":"user","content":"hi","x":1.0}'
REPLY = b'{"role": "assistant", "content": "hello"}'
SYSTEM = b'{"role": "system", "content": "Be \\u00e9xact", "name": "app"}'


def put(
    layout: Layout,
    instructions: Sequence[bytes],
    tail: Sequence[bytes],
    block: str = "B",
    hint: str = "H",
) -> list[Any]:
    roles = [json.loads(raw)["role"] for raw in instructions]
    return [json.loads(raw) for raw in assemble(instructions, roles, block, hint, tail, layout)]


def said(messages: list[Any]) -> list[tuple[str, Any]]:
    return [(m["role"], m["content"]) for m in messages]


@pytest.mark.parametrize(
    ("layout", "instructions", "tail", "messages"),
    [
        pytest.param(
            "blocks",
            [],
            [USER],
            [("system", "B"), ("user", "H"), ("user", "hi")],
            id="blocks, none",
        ),
        pytest.param(
            "blocks",
            [SYSTEM],
            [USER],
            [("system", "Be éxact"), ("system", "B"), ("user", "H"), ("user", "hi")],
            id="blocks, system",
        ),
        pytest.param(
            "blocks",
            [SYSTEM, b'{"role":"developer","content":"D"}'],
            [REPLY, USER],
            [
                ("system", "Be éxact"),
                ("developer", "D"),
                ("developer", "B"),
                ("user", "H"),
                ("assistant", "hello"),
                ("user", "hi"),
            ],
            id="blocks, developer",
        ),
        pytest.param(
            "merged", [], [USER], [("system", "B\n\nH"), ("user", "hi")], id="merged, none"
        ),
        pytest.param(
            "merged",
            [SYSTEM],
            [USER],
            [("system", "Be éxact\n\nB\n\nH"), ("user", "hi")],
            id="merged, one",
        ),
        pytest.param(
            "merged",
            [SYSTEM, b'{"role":"developer","content":"D"}'],
            [USER],
            [("system", "Be éxact"), ("developer", "D\n\nB\n\nH"), ("user", "hi")],
            id="merged, the last of several",
        ),
        pytest.param(
            "merged",
            [SYSTEM],
            [REPLY, USER],
            [("system", "Be éxact\n\nB"), ("user", "H"), ("assistant", "hello"), ("user", "hi")],
            id="merged, a tail that starts with the assistant",
        ),
        pytest.param(
            "merged",
            [],
            [REPLY],
            [("system", "B"), ("user", "H"), ("assistant", "hello")],
            id="merged, none, assistant",
        ),
        pytest.param(
            "merged",
            [b'{"role":"system","content":[ {"type":"text","text":"A"} ]}'],
            [USER],
            [
                ("system", [{"type": "text", "text": "A"}, {"type": "text", "text": "B\n\nH"}]),
                ("user", "hi"),
            ],
            id="merged, a list of parts",
        ),
        pytest.param(
            "merged",
            [b'{"role":"system","content":[ ]}'],
            [USER],
            [("system", [{"type": "text", "text": "B\n\nH"}]), ("user", "hi")],
            id="merged, an empty list",
        ),
        pytest.param(
            "merged",
            [b'{"role":"system","content":""}'],
            [USER],
            [("system", "B\n\nH"), ("user", "hi")],
            id="merged, empty text",
        ),
        pytest.param(
            "merged",
            [b'{"role":"system","content":null}'],
            [USER],
            [("system", None), ("system", "B\n\nH"), ("user", "hi")],
            id="merged, no text to append to",
        ),
        pytest.param(
            "user", [], [USER, REPLY], [("user", "B\n\nH\n\nhi"), ("assistant", "hello")], id="user"
        ),
        pytest.param(
            "user",
            [],
            [REPLY, USER],
            [("user", "B\n\nH"), ("assistant", "hello"), ("user", "hi")],
            id="user, midway",
        ),
        pytest.param(
            "user",
            [],
            [b'{"role":"user","content":[{"type":"text","text":"hi"}]}'],
            [("user", [{"type": "text", "text": "B\n\nH"}, {"type": "text", "text": "hi"}])],
            id="user, parts",
        ),
        pytest.param(
            "user",
            [],
            [b'{"role":"user","content":null}'],
            [("user", "B\n\nH"), ("user", None)],
            id="user, no text to put it before",
        ),
    ],
)
def test_layouts(
    layout: Layout, instructions: list[bytes], tail: list[bytes], messages: list[tuple[str, Any]]
) -> None:
    """The client's instructions first, then ours, then the tail; or ours in its first message."""
    assert said(put(layout, instructions, tail)) == messages


@pytest.mark.parametrize("layout", ["blocks", "merged"])
@pytest.mark.parametrize(("block", "hint", "ours"), [("", "", 0), ("B", "", 1), ("", "H", 1)])
def test_empty_texts_leave_no_trace(layout: Layout, block: str, hint: str, ours: int) -> None:
    """Without memory the messages are the client's own, byte for byte."""
    made = assemble([SYSTEM], ["system"], block, hint, [USER], layout)
    assert made[-1] == USER
    if not ours:
        assert made == (SYSTEM, USER)


@pytest.mark.parametrize("layout", ["blocks", "merged"])
def test_the_tail_is_forwarded_as_it_is(layout: Layout) -> None:
    """Numbers, blanks and unknown keys included."""
    assert assemble([SYSTEM], ["system"], "B", "H", [USER, REPLY], layout)[-2:] == (USER, REPLY)


def test_merged_text_keeps_its_bytes() -> None:
    """The client's text stays first and unchanged, escapes and all, and so do the other members."""
    (merged, _) = assemble([SYSTEM], ["system"], "B", "H", [USER], "merged")
    assert merged.startswith(b'{"role":"system","content":"Be \\u00e9xact\\n\\nB')
    assert merged.endswith(b',"name":"app"}')


@given(st.text(), st.text(), st.text(st.characters(exclude_categories=())))
def test_any_text_arrives(theirs: str, name: str, block: str) -> None:
    """Quotes, control characters and lone halves of surrogate pairs pass through the JSON of both
    layouts."""
    theirs, name = (text.encode("utf-8", "replace").decode() for text in (theirs, name))
    system = json.dumps({"role": "system", "content": theirs, "name": name}).encode()
    for layout in ("blocks", "merged"):
        made = put(layout, [system], [USER], block or "B")
        assert made[0]["name"] == name
        assert made[0]["content"].startswith(theirs)
        assert (block or "B") in made[-3 if layout == "blocks" else 0]["content"]


def written(block: str) -> bytes:
    return assemble([], [], block, "", [USER], "blocks")[0]


def test_a_block_is_written_once() -> None:
    """The same one comes with every request between two activations."""
    block = "* 🔴 a long one\n" * 1_000
    first = count_lines_run(lambda: written(block))
    assert count_lines_run(lambda: written("".join(list(block)))) < first


def test_what_is_kept_of_blocks() -> None:
    """A bounded number of bytes, whatever their number and length: one 🔴 makes four bytes of each
    character."""

    def many() -> None:
        for number in range(80):
            written(f"{number} 🔴 " + "a" * 160_000)

    assert measure_kept_bytes(many) < MAX_WRITTEN_BYTES * 1.1
    assert measure_kept_bytes(lambda: written("🔴" + "a" * MAX_WRITTEN_BYTES)) < 2**20
