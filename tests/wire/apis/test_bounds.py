"""What a body may make us do is bounded: values to be split, half characters to be mended."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.transcript.sent_history import MIN_DIGESTED_BYTES, recognise
from om_proxy.wire.apis import json_text
from om_proxy.wire.apis.api import Reply, Unreadable
from om_proxy.wire.apis.chat.deltas import CALL_VALUES
from om_proxy.wire.apis.chat.reply import MAX_CHOICES, ChatReplyReader
from om_proxy.wire.apis.json_text import (
    COUNT_VALUES_ABOVE_BYTES,
    MAX_JSON_VALUES,
    replace_lone_surrogates,
)
from om_proxy.wire.apis.json_text import MAX_SURROGATES_EXAMINED as MOST_HALVES
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.apis.split import SlicedMessages
from om_proxy.wire.apis.sse import EventDecoder
from tests.support.counting import TIMES, measure_cpu_s
from tests.support.weighing import measure_peak_bytes

PIECES = (
    "\\ud83d",
    "\\ude00",
    "\\uDBff",
    "\\\\",
    "\\n",
    "\\u00e9",
    "x",
    "\\uD83D\\uDE00",
    "é",
    "d83d",
)


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_halves(text: str) -> None:
    """Python reads halves as they are: what is mended reads the same but for them."""
    written = f'"{text}"'
    mended = replace_lone_surrogates(written.encode())
    read = json.loads(written)
    whole = "".join(
        "\ufffd" if "\ud800" <= character <= "\udfff" else character for character in read
    )
    assert json.loads(mended or written) == whole
    assert (mended is not None) == (read != whole)
    assert mended is None or len(mended) == len(written.encode())


def test_halves_without_end() -> None:
    """More than anyone means are not mended."""
    few, many = (b'"' + b"\\ud83d" * count + b'"' for count in (MOST_HALVES, MOST_HALVES + 1))
    assert replace_lone_surrogates(few) == b'"' + b"\\ufffd" * MOST_HALVES + b'"'
    assert replace_lone_surrogates(many) is None


@pytest.mark.parametrize("value", [b"0", b"{}", b"[]", b'{"role":"user","content":"x"}'])
def test_values_without_end(value: bytes) -> None:
    """Messages by the million are no request; a large body with few is one."""
    many = max(MAX_JSON_VALUES, COUNT_VALUES_ABOVE_BYTES // (len(value) + 1)) + 1
    with pytest.raises(Unreadable, match="more JSON values"):
        CHAT.parse_request(b'{"messages":[' + b",".join([value] * many) + b"]}")
    assert (
        len(
            CHAT.parse_request(
                b'{"messages":[' + value + b',"' + b"x" * COUNT_VALUES_ABOVE_BYTES + b'"]}'
            ).messages
        )
        == 2
    )


def test_tables_are_texts() -> None:
    """Commas and brackets inside of texts are no values, whatever their number: long histories hold
    data."""
    table = json.dumps({"role": "tool", "content": '{"a": [1, 2, 3]}, "b\\"' * 200_000}).encode()
    body = b'{"messages":[' + table + b"," + table + b"]}"
    assert body.count(b",") > MAX_JSON_VALUES
    assert len(CHAT.parse_request(body).messages) == 2


def test_values_inside_a_message() -> None:
    """They count as well: each message is read some time."""
    with pytest.raises(Unreadable, match="more JSON values"):
        CHAT.parse_request(
            b'{"messages":[{"role":"user","content":['
            + b",".join([b"{}"] * COUNT_VALUES_ABOVE_BYTES)
            + b"]}]}"
        )


def test_values_behind_known_messages() -> None:
    """They count too, whatever is known of the messages before them."""
    known = [b'{"role":"user","content":"%s"}' % (b"x" * MIN_DIGESTED_BYTES)] * 9
    first = CHAT.parse_request(b'{"messages":[' + b",".join(known) + b"]}")
    split = CHAT.build_split(first, recognise((), first.messages).digests, 0)
    assert split is not None
    few, many = (b",".join([b"{}"] * count) for count in (9, COUNT_VALUES_ABOVE_BYTES))
    bodies = [
        b'{"messages":[' + b",".join([*known, b'{"role":"user","content":[' + values + b"]}]}"])
        for values in (few, many)
    ]
    assert isinstance(CHAT.parse_request(bodies[0], split).messages, SlicedMessages)
    with pytest.raises(Unreadable, match="more JSON values"):
        CHAT.parse_request(bodies[1], split)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * COUNT_VALUES_ABOVE_BYTES,
        b'{"messages":' + b"[" * COUNT_VALUES_ABOVE_BYTES,
        b'{"a":' * 100_000,
        b'{"messages":[' + b'{"a":' * 100_000,
    ],
)
def test_depth_without_end(body: bytes) -> None:
    """Nested as deep as a body is long."""
    with pytest.raises(Unreadable):
        CHAT.parse_request(body)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('"\\\\,[{}]:a\n')),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.sampled_from('"\\\\,[{}]')), inner, max_size=4)
    ),
    max_leaves=30,
)


def values(value: Any) -> int:
    """Commas between values, and brackets that open."""
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(len(inner) - 1, 0) + sum(map(values, inner))


@given(JSON, st.sampled_from([None, 1]))
def test_values_are_counted(value: Any, indent: int | None) -> None:
    """To the very number, whatever stands in the texts between them."""
    body, count = json.dumps(value, indent=indent).encode(), values(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "MAX_JSON_VALUES", max(count, 1))
        assert not json_text.has_too_many_values(body)
        if count > 1:
            patch.setattr(json_text, "MAX_JSON_VALUES", count - 1)
            assert json_text.has_too_many_values(body)


@pytest.mark.parametrize("end", [b"", b"\\", b"\\\\", b'\\"', b'\\" \\'])
def test_a_text_without_an_end(end: bytes) -> None:
    """It reaches to the end of the body, and what stands in it are no values."""
    body = (
        b'{"messages":[],"x":"'
        + b'\\",' * (MAX_JSON_VALUES + 1)
        + b" " * COUNT_VALUES_ABOVE_BYTES
        + end
    )
    with pytest.raises(Unreadable, match="not a JSON object"):
        CHAT.parse_request(body)


COMMAS = b"," * 40_000
OPEN: dict[str, Callable[[int], bytes]] = {
    "quotes": lambda count: b'{"x":"' + b'\\"' * count + COMMAS[: 40 * count],
    "backslashes": lambda count: b'{"x":"' + b"\\\\" * count + COMMAS[: 40 * count] + b"\\",
    "one quote each": lambda count: b'{"x":' + b'",\\"' * count + COMMAS[: 40 * count] + b"\\",
}


@pytest.mark.parametrize("shape", OPEN)
def test_a_text_without_an_end_is_read_once(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again from every quote in it: eight times the text takes less than the 64 times of a
    square."""
    monkeypatch.setattr(json_text, "MAX_JSON_VALUES", 100)
    shorter, longer = (OPEN[shape](count) for count in (1_000 // TIMES, 1_000))
    assert measure_cpu_s(partial(json_text.has_too_many_values, longer)) < 5 * TIMES * max(
        measure_cpu_s(partial(json_text.has_too_many_values, shorter)), 0.001
    )


def test_texts_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has no more than two texts to a value: a body with more is not read to its end. Each of
    32 million empty ones would be looked at else."""
    monkeypatch.setattr(json_text, "MAX_JSON_VALUES", 100)
    looked_at = 0

    class Counting:
        @staticmethod
        def finditer(body: bytes) -> Any:
            nonlocal looked_at
            for found in pattern.finditer(body):
                looked_at += 1
                yield found

    pattern = json_text._TEXT_OR_VALUE
    monkeypatch.setattr(json_text, "_TEXT_OR_VALUE", Counting)
    assert json_text.has_too_many_values(b'""' * 100_000 + b'"' + b"," * 101 + b'"')
    assert looked_at <= 302


def replied(*parts: bytes, stream: bool) -> Reply:
    reader = ChatReplyReader(stream)
    for part in parts:
        reader.feed(part)
    return reader.finish()


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def spoken(index: int, delta: bytes) -> bytes:
    return b'{"index":%d,"delta":%s,"finish_reason":"stop"}' % (index, delta)


def listed(choices: list[bytes], more: bytes = b"") -> bytes:
    return b'{"choices":[' + b",".join(choices) + b"]" + more + b"}"


def test_choices_without_end() -> None:
    """As many as can be asked for are kept; one more, and the reply is as good as unreadable."""
    said = [
        b'{"index":%d,"message":{"role":"assistant","tool_calls":[{},{}]}}' % i
        for i in range(MAX_CHOICES + 1)
    ]
    most = replied(listed(said[:-1]), stream=False)
    assert (most.complete, len(most.others)) == (True, MAX_CHOICES - 1)
    assert replied(listed(said), stream=False) == Reply()


def test_braces_are_no_choices() -> None:
    """A message may have any number of them."""
    calls = b",".join([b'{"id":"c","function":{"name":"f","arguments":"{}"}}'] * 500)
    message = b'{"role":"assistant","tool_calls":[' + calls + b"]}"
    assert replied(listed([b'{"message":' + message + b"}"]), stream=False) == Reply(message, True)


def test_streamed_choices_without_end() -> None:
    """In one event or one in each."""
    said = [spoken(i, b'{"content":"x"}') for i in range(MAX_CHOICES + 1)]
    for most in ([event(listed(said[:-1]))], [event(listed([one])) for one in said[:-1]]):
        reply = replied(*most, stream=True)
        assert (reply.message, reply.complete) == (b'{"role":"assistant","content":"x"}', True)
        assert len(reply.others) == MAX_CHOICES - 1
    for more in ([event(listed(said))], [event(listed([one])) for one in said]):
        assert replied(*more, event(listed(said[:1])), event(b"[DONE]"), stream=True) == Reply()


def test_many_pieces_of_one_choice() -> None:
    """Its number is what counts, not how often it is named."""
    reply = replied(*[event(listed([spoken(700, b'{"content":"x"}')]))] * 1_000, stream=True)
    assert reply.others == (b'{"role":"assistant","content":"' + b"x" * 1_000 + b'"}',)


VALUES = b",".join([b"[]"] * (MAX_JSON_VALUES // 2))
CALLS = b",".join(b'{"index":%d}' % i for i in range(MAX_JSON_VALUES // CALL_VALUES + 1))
ENDLESS = {
    "calls": [spoken(0, b'{"tool_calls":[' + CALLS + b"]}")],
    "calls of two choices": [
        spoken(i, b'{"tool_calls":[' + CALLS[: len(CALLS) * 2 // 3].rpartition(b",")[0] + b"]}")
        for i in range(2)
    ],
    "pieces of a call": [
        spoken(0, b'{"tool_calls":[' + b",".join([b"{}"] * (MAX_JSON_VALUES // 2)) + b"]}")
    ]
    * 2,
    "values": [spoken(0, b'{"x":[' + VALUES + b"]}")] * 2,
    "members": [
        spoken(0, b"{" + b",".join(b'"%d":0' % i for i in range(MAX_JSON_VALUES // 10 + 1)) + b"}")
    ],
}


@pytest.mark.parametrize("shape", ENDLESS)
def test_streamed_values_without_end(shape: str) -> None:
    """Whatever they are kept in, and however many events they come in; what comes after is not
    read."""
    reader = ChatReplyReader(stream=True)
    for choice in ENDLESS[shape]:
        reader.feed(event(listed([choice])))
    assert reader.finish() == Reply()
    reader.feed(event(listed([spoken(0, b'{"content":"x"}')])) + event(b"[DONE]"))
    assert reader.finish() == reader.finish() == Reply()


ENDLESS_VALUES = b'{"a":[' + b",".join([b"[]"] * (COUNT_VALUES_ABOVE_BYTES // 3 + 1)) + b"]}"


@pytest.mark.parametrize("member", [b"usage", b"error", b"x"])
def test_a_large_reply_of_values(member: bytes) -> None:
    """By the rule for requests; a stream is not read on."""
    reply = listed([b'{"message":{"role":"assistant"}}'], b',"' + member + b'":' + ENDLESS_VALUES)
    assert replied(reply, stream=False) == Reply()
    assert (
        replied(event(listed([spoken(0, b'{"content":"x"}')])), event(reply), stream=True)
        == Reply()
    )


def test_a_large_reply_of_text() -> None:
    """Commas and brackets inside of texts are no values."""
    text = b"[1, {2, 3}], " * (COUNT_VALUES_ABOVE_BYTES // 4)
    message = b'{"role":"assistant","content":"' + text + b'"}'
    assert replied(listed([b'{"message":' + message + b"}"]), stream=False) == Reply(message, True)
    assert replied(event(listed([spoken(0, message)])), stream=True) == Reply(message, True, "stop")


FLAT = {
    "choices": (False, listed([b"{}"] * 300_000)),
    "choices that are none": (False, listed([b"[]"] * 300_000)),
    "usage": (False, listed([], b',"usage":' + ENDLESS_VALUES[:900_000] + b"]}")),
    "index": (False, listed([b'{"index":' + ENDLESS_VALUES[:900_000] + b"]}}"])),
    "usage of an event": (True, event(listed([], b',"usage":' + ENDLESS_VALUES[:900_000] + b"]}"))),
    "index of an event": (True, event(listed([b'{"index":' + ENDLESS_VALUES[:900_000] + b"]}}"]))),
    "error of an event": (True, event(listed([], b',"error":' + ENDLESS_VALUES[:900_000] + b"]}"))),
    "lines of an event": (True, b"data:xy\n" * 100_000),
}


@pytest.mark.parametrize("shape", FLAT)
def test_what_is_not_kept_is_not_built(shape: str) -> None:
    """A megabyte that is small enough to be read takes some copies of itself, not ninety."""
    stream, data = FLAT[shape]
    assert measure_peak_bytes(partial(replied, data, stream=stream)) < 12 * len(data)


def test_short_lines_are_kept_as_one_text() -> None:
    """An event's lines, in pieces as they come from a network, take about their own length."""
    decoder, lines = EventDecoder(), b"data:xy\n" * 1_000
    assert (
        measure_peak_bytes(lambda: [list(decoder.feed(lines)) for _ in range(50)]) < len(lines) * 50
    )


def test_a_delta_too_deep_to_be_merged() -> None:
    """It is beyond as well, and raises nothing."""
    deep = b'{"function":' * 900 + b"{}" + b"}" * 900
    assert replied(event(listed([spoken(0, deep)])), event(b"[DONE]"), stream=True).message is None
