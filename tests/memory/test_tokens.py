"""The tokens of a message's payload."""

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory import tokens as token_counts
from om_proxy.memory.tokens import (
    MAX_DATA_URL_HEAD_CHARS,
    MIN_FILE_TOKENS,
    UNQUOTED_PIECE_BYTES,
    UNSEEN_FILE_TOKENS,
    Encode,
    estimate_tokens,
)
from om_proxy.wire.apis.chat.chat_message import MAX_PARTS_ONE_BY_ONE, view_parsed
from tests.memory.test_tokens_images import png
from tests.support.counting import count_lines_run
from tests.support.weighing import measure_peak_bytes

PNG = "data:image/png;base64," + b64encode(png(512, 512)).decode()


def count(message: Mapping[str, Any], encode: Encode, model: str = "") -> int:
    return token_counts.count(view_parsed(message), encode, model)


def words(text: str) -> int:
    return len(text.split())


def call(name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": "call one two",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def file(mime: str, data: bytes) -> dict[str, Any]:
    return {
        "type": "file",
        "file": {
            "filename": "a b c",
            "file_data": f"data:{mime};base64,{b64encode(data).decode()}",
        },
    }


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        pytest.param({}, 0, id="nothing"),
        pytest.param({"role": "user", "content": "one two three"}, 3, id="text"),
        pytest.param({"role": "user", "content": "one", "name": "ann b"}, 3, id="a name"),
        pytest.param({"role": "assistant", "content": None, "refusal": "no no"}, 2, id="a refusal"),
        pytest.param(
            {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            2,
            id="text parts",
        ),
        pytest.param(
            {"content": [{"type": "refusal", "refusal": "no no"}]}, 2, id="a refusal part"
        ),
        pytest.param({"content": ["one two"]}, 2, id="a bare part"),
        pytest.param(
            {"content": "", "tool_calls": [call("read", '{"path": "a"}'), call("run", "{}")]},
            5,
            id="tool calls, ids aside",
        ),
        pytest.param(
            {"tool_calls": [{"type": "custom", "custom": {"name": "q", "input": "x y"}}]},
            3,
            id="a custom call",
        ),
        pytest.param({"function_call": {"name": "f", "arguments": "a b"}}, 3, id="the old form"),
        pytest.param(
            {"role": "tool", "tool_call_id": "a b", "content": "four words are here"},
            4,
            id="a result",
        ),
        pytest.param(
            {"content": "one", "reasoning_content": "two three", "reasoning": "four"},
            1,
            id="no reasoning",
        ),
        pytest.param(
            {"content": [{"type": "thinking", "thinking": "two three"}]}, 0, id="no thinking"
        ),
        pytest.param(
            {"content": [{"type": "image_url", "image_url": {"url": PNG}}]}, 255, id="an image"
        ),
        pytest.param(
            {"content": [{"type": "image_url", "image_url": PNG}]}, 255, id="an image, short form"
        ),
        pytest.param(
            {"content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]},
            85,
            id="low detail",
        ),
        pytest.param(
            {"content": [{"type": "input_image", "image_url": PNG, "detail": "low"}]},
            85,
            id="responses form",
        ),
        pytest.param(
            {"content": [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}]},
            765,
            id="far away",
        ),
        pytest.param(
            {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}]},
            765,
            id="broken",
        ),
        pytest.param({"content": [{"type": "image_url"}]}, 765, id="an image without address"),
        pytest.param(
            {"content": [file("image/png", png(512, 512))]}, 255, id="an image sent as a file"
        ),
        pytest.param({"content": [file("text/plain", b"one two three")]}, 3, id="a text file"),
        pytest.param(
            {"content": [file("text/plain;charset=utf-8", b"one two")]},
            2,
            id="a text file with its charset",
        ),
        pytest.param({"content": [file("application/pdf", bytes(40_000))]}, 2_000, id="a document"),
        pytest.param(
            {"content": [file("application/pdf", bytes(40))]},
            MIN_FILE_TOKENS,
            id="a small document",
        ),
        pytest.param(
            {"content": [{"type": "file", "file": {"file_id": "f1"}}]},
            UNSEEN_FILE_TOKENS,
            id="a file by id",
        ),
        pytest.param(
            {"content": [{"type": "file"}]}, UNSEEN_FILE_TOKENS, id="a file without anything"
        ),
        pytest.param(
            {
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "wav"}}
                ]
            },
            10,
            id="sound",
        ),
        pytest.param(
            {
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "mp3"}}
                ]
            },
            30,
            id="packed",
        ),
        pytest.param({"content": [{"type": "input_audio"}]}, 0, id="no sound"),
        pytest.param(
            {"content": [{"type": "strange", "value": "x" * 80}]}, 28, id="an unknown part"
        ),
        pytest.param(
            {"content": 7, "name": 7, "tool_calls": [7, {"function": 7}, {}]},
            0,
            id="what is no message",
        ),
    ],
)
def test_payload(message: dict[str, Any], tokens: int) -> None:
    """Text, calls with arguments, results, names, attachments by rule; not ids, roles or
    reasoning."""
    assert count(message, words) == tokens


def at(url: str, kind: str = "file") -> dict[str, Any]:
    return {"content": [{"type": kind, "file_data": url, "image_url": url}]}


@pytest.mark.parametrize(
    ("head", "tokens"),
    [
        ("data:text/plain,", 2),
        ("DATA:Text/Plain,", 2),
        ("data:text/plain;charset=utf-8;name=a%20b.txt,", 2),
        ("data:text/plain;;;,", 2),
        ("data:text/plain;base64;a,", 2),
        ("data:text/plain;" + "n" * (MAX_DATA_URL_HEAD_CHARS - 17) + ",", 2),
        ("data:text/plain;" + "n" * (MAX_DATA_URL_HEAD_CHARS - 16) + ",", MIN_FILE_TOKENS),
        ("data:text/plain", MIN_FILE_TOKENS),
        ("data:text/pl ain,", MIN_FILE_TOKENS),
    ],
)
def test_the_head_of_a_data_url(head: str, tokens: int) -> None:
    """Any parameters, in any case. One longer than any that is meant is an address we know nothing
    of."""
    assert count(at(head + "one%20two"), words) == tokens


@pytest.mark.parametrize("kind", ["file", "image_url"])
@pytest.mark.parametrize(
    "head", ["data:a" + ";" * 200_000, "data:a" + ";a=b" * 50_000, "data:" + "a" * 200_000]
)
def test_a_head_without_end(head: str, kind: str) -> None:
    """It takes no memory: its parameters, matched one by one, each with a way back, took two
    hundred bytes a character."""
    assert measure_peak_bytes(lambda: count(at(head, kind), words)) < len(head)


@given(
    st.lists(
        st.sampled_from(
            ["%41", "%", "4", "%%41", "%c3%a9", "é", "x" * (UNQUOTED_PIECE_BYTES - 3), "%4", " "]
        )
    ).map("".join)
)
def test_a_quoted_text(quoted: str) -> None:
    """Unquoted in pieces it is what it would be as a whole."""
    text = unquote_to_bytes(quoted).decode("utf-8", "replace")
    assert count(at("data:text/plain," + quoted), len) == len(text)


@pytest.mark.parametrize("mime", ["", "text/plain", "image/svg+xml"])
def test_a_quoted_file_without_end(mime: str) -> None:
    """It takes memory for its bytes, not for each as an object of its own: that was 75 bytes for
    each character."""
    url = f"data:{mime}," + "%41" * 400_000
    assert measure_peak_bytes(lambda: count(at(url), len)) < 5 * len(url)


UNKNOWN = st.dictionaries(
    st.text(max_size=3), st.integers() | st.text(max_size=9) | st.floats(), max_size=3
).map(lambda part: {**part, "type": "strange"})


@given(st.lists(UNKNOWN, max_size=8))
def test_unknown_parts(parts: list[dict[str, Any]]) -> None:
    """Each counts as the JSON it is."""
    assert count({"content": parts}, words) == sum(
        estimate_tokens(json.dumps(part)) for part in parts
    )


@pytest.mark.parametrize("part", [{}, {"a": 1}, {"type": "strange", "value": "é" * 80}])
def test_unknown_parts_without_end(part: dict[str, Any]) -> None:
    """Of many the others are written together, which makes a token more of one at most; a text
    among them counts as ever."""
    text = {"type": "text", "text": "one two"}
    many = {
        "content": [*[part] * 20 * MAX_PARTS_ONE_BY_ONE, text, *[part] * 20 * MAX_PARTS_ONE_BY_ONE]
    }
    apart = 40 * MAX_PARTS_ONE_BY_ONE * count({"content": [part]}, words) + 2
    assert apart <= count(many, words) <= apart + 40 * MAX_PARTS_ONE_BY_ONE
    texts = {"content": [text] * 40 * MAX_PARTS_ONE_BY_ONE}
    assert count_lines_run(lambda: count(many, words)) < 2 * count_lines_run(
        lambda: count(texts, words)
    )


def test_the_model_chooses_the_rule() -> None:
    """Images and sound cost what the actor's provider says."""
    image = {"content": [{"type": "image_url", "image_url": {"url": PNG}}]}
    sound = {
        "content": [{"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "wav"}}]
    }
    assert count(image, words, "claude-sonnet-4-5") == 350
    assert count(sound, words, "gemini-2.5-pro") == 32


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abcd", 1),
        ("abcde", 2),
        ("日本語", 2),
        ("한국어", 2),
        ("日本語ab", 2),
        ("naïve café", 3),
        ("🔴🔴🔴🔴", 1),
    ],
)
def test_estimate(text: str, tokens: int) -> None:
    """Four characters a token, two for Chinese, Japanese and Korean."""
    assert estimate_tokens(text) == tokens


KEYS = st.sampled_from(
    [
        "content",
        "type",
        "text",
        "image_url",
        "url",
        "detail",
        "file",
        "file_data",
        "input_audio",
        "data",
        "format",
        "tool_calls",
        "function",
        "name",
    ]
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(max_size=5),
        st.sampled_from(["data:image/png;base64,AA", PNG]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=8,
)
TYPED = st.dictionaries(KEYS, VALUES, max_size=5).flatmap(
    lambda part: st.sampled_from(["text", "image_url", "file", "input_audio", "x"]).map(
        lambda kind: {**part, "type": kind}
    )
)


@given(st.dictionaries(KEYS, VALUES, max_size=5), st.lists(TYPED, max_size=3))
def test_any_message_has_a_count(message: dict[str, Any], parts: list[Any]) -> None:
    """Clients send odd things; none of them raises."""
    assert count(message, words) >= 0
    assert count({**message, "content": parts}, words) >= 0
