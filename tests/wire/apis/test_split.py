"""Requests split behind what is known of their thread: the same requests, whatever they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from om_proxy.memory.model import View
from om_proxy.memory.transcript import sent_history
from om_proxy.memory.transcript.sent_history import NO_DIGESTS, REHASHED_MESSAGES, recognise
from om_proxy.wire.apis import split
from om_proxy.wire.apis.api import Request, Unreadable
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.apis.request_members import replace_messages, split_members
from om_proxy.wire.apis.split import (
    KNOWN_PREFIX_PLACEHOLDER,
    MAX_SPLITS_BYTES,
    SlicedMessages,
    Split,
    Splits,
)
from tests.support.weighing import measure_peak_bytes

SYSTEM = b'{"role":"system","content":"be kind"}'
NEXT = b'{"role":"user","content":"next"}'


@pytest.fixture(autouse=True, scope="module")
def _of_short_lists_too() -> Iterator[None]:
    with patch.object(sent_history, "MIN_DIGESTED_BYTES", 0):
        yield


def said(count: int, first: int = 0) -> list[bytes]:
    return [
        b'{"role":"%s","content":"%d"}' % ((b"user", b"assistant")[n % 2], n)
        for n in range(first, first + count)
    ]


def body(
    messages: Sequence[bytes], head: bytes = b'{"model":"m","messages":[', end: bytes = b"]}"
) -> bytes:
    return head + b",".join(messages) + end


def known(of: bytes, views: Sequence[View] = ()) -> Split | None:
    """What is kept of a request; of a small one too."""
    try:
        request = CHAT.parse_request(of)
    except Unreadable:
        return None
    with patch.object(split, "MIN_SPLIT_BODY_BYTES", 0):
        return CHAT.build_split(request, recognise(views, request.messages).digests, 0)


def read(request: Request) -> dict[str, Any]:
    """All that a request says."""
    members = ("body", "model", "stream", "instructions", "instruction_roles")
    said = {name: getattr(request, name) for name in members}
    return said | {
        "messages": tuple(request.messages),
        "count": len(request.messages),
        "digest": recognise((), request.messages).digest,
        "names": list(split_members(request)),
        "with": replace_messages(request, (b"1", b"2")),
    }


def outcome(of: bytes, behind: Split | None = None) -> dict[str, Any] | None:
    try:
        return read(CHAT.parse_request(of, behind))
    except Unreadable:
        return None


# ── the fast road and the slow one ────────────────────────────────────────────────────────────────

GAPS = st.sampled_from([b",", b", ", b" ,\n\t", b",\r\n  "])
MESSAGE = st.sampled_from(
    [
        *said(4),
        SYSTEM,
        b"1",
        b"-0.5e3",
        b"null",
        b'"x"',
        b"[]",
        b'{"messages":[1,2]}',
        b'{"role":"user","content":"\\ud83d"}',
        b'{"role":"user","content":[{"text":"]}\\\\\\""}]}',
        '{"role":"user","content":"é🔴"}'.encode(),
    ]
)
HEADS = st.sampled_from(
    [
        b'{"messages":[',
        b'{ "model":"m\\u0031", "messages" :\n[ ',
        b'{"stream":true,"n":2,"messages":[1],"messages":[',
        b'{"tools":[{"x":"\\"messages\\":["}],"meta":{"messages":[',
        b'{"meta":{"messages":[]},"messages":[',
    ]
)
ENDS = st.sampled_from(
    [
        b"]}",
        b' ] , "model":"other" }',
        b'],"messages":[]}',
        b']},"messages":[1]}',
        b'],"top_p":1e999}',
        b"]} ",
        b"]} x",
    ]
)
FIRST = st.sampled_from([b"", SYSTEM + b",", SYSTEM + b" , " + SYSTEM + b", "])
FORMS = st.tuples(HEADS, FIRST, GAPS, ENDS)
PIECES = st.sampled_from(
    [
        b"",
        b"",
        b",",
        b"]",
        b"[",
        b"1",
        b'"',
        b"\\",
        b" ",
        b"{",
        b"}",
        b"]}",
        KNOWN_PREFIX_PLACEHOLDER,
        NEXT,
        NEXT + b",",
        b"," + SYSTEM,
    ]
) | st.sampled_from([b'"messages":[', b"],", b'{"role":"system","content":"now: 12"},'])


@st.composite
def changed(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A body, and one made of it: messages replaced, members around them, a few stretches of its
    bytes, or several of these."""
    raws, form = (
        draw(st.lists(MESSAGE, max_size=12) | st.lists(MESSAGE, min_size=6, max_size=9)),
        draw(FORMS),
    )
    place = draw(st.integers(0, len(raws)))
    behind = draw(st.integers(place, len(raws)))
    others = raws[:place] + draw(st.lists(MESSAGE, max_size=4)) + raws[behind:]
    other = written(others, draw(st.just(form) | FORMS))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(other)))
        behind = draw(st.sampled_from([at, at, at + 1, at + 5, len(other)]))
        other = other[:at] + draw(PIECES) + other[behind:]
    return written(raws, form), other


def written(raws: Sequence[bytes], form: tuple[bytes, bytes, bytes, bytes]) -> bytes:
    head, first, gap, end = form
    return head + first + gap.join(raws) + end


@given(changed())
@example((body(said(9)), body(said(8))))
@example((body(said(9)), body([*said(9), b"1"])))
@example((body(said(9)), body([KNOWN_PREFIX_PLACEHOLDER, *said(9)])))
@example((body([*said(4), b"1", *said(4)]), body([*said(4), b"12", *said(4)])))
@example((body(said(9)), b'{"meta":{"messages":[' + b",".join(said(9)) + b']},"messages":[1]}'))
@example((body(said(9)), body(said(9), end=b'],"messages":[2]}')))
@example((body(said(9)), body(said(9), head=b'{"messages":[2],"messages":[')))
@example((body(said(9)), body([SYSTEM, *said(9)])))
@example((body(said(9)), body([NEXT, *said(9)])))
@example((body(said(9)), body(said(9))[:-3]))
@example((body(said(9)), body([*said(2), b'{"role":"user","content":"x"}', *said(6, 3)])))
def test_behind_what_is_known_a_request_is_the_same(pair: tuple[bytes, bytes]) -> None:
    """Whatever is kept of one body, any other is split by it as it is split whole, or refused as it
    is refused."""
    one, other = pair
    kept = known(one)
    assert outcome(other, kept) == outcome(other)
    assert outcome(one, kept) == outcome(one)


@given(changed(), st.integers(1, 12))
def test_what_is_kept_can_be_gone_on_from(pair: tuple[bytes, bytes], more: int) -> None:
    """What is kept of a request that was split behind another's is what would be kept of it
    alone."""
    one, other = pair
    kept = known(one)
    try:
        request = CHAT.parse_request(other, kept)
    except Unreadable:
        return
    with patch.object(split, "MIN_SPLIT_BODY_BYTES", 0):
        again = CHAT.build_split(request, recognise((), request.messages).digests, 0)
    grown = other.replace(b"]", b"," + b",".join(said(more)) + b"]", 1)
    assert outcome(other, again) == outcome(other)
    assert outcome(grown, again) == outcome(grown)


# ── that it is taken ──────────────────────────────────────────────────────────────────────────────


def is_fast(of: bytes, behind: Split | None) -> bool:
    return isinstance(CHAT.parse_request(of, behind).messages, SlicedMessages)


@pytest.mark.parametrize("gap", [b",", b", ", b",\n    "])
def test_a_conversation_that_goes_on(gap: bytes) -> None:
    """Turn by turn what is known is not split again, and is kept with what is new."""
    kept: Split | None = None
    for count in range(1, 40, 2):
        text = b'{"messages":[' + gap.join([SYSTEM, *said(count)]) + b"]}"
        request = CHAT.parse_request(text, kept)
        assert isinstance(request.messages, SlicedMessages) == (count > REHASHED_MESSAGES + 2)
        assert read(request) == outcome(text)
        with patch.object(split, "MIN_SPLIT_BODY_BYTES", 0):
            kept = CHAT.build_split(request, recognise((), request.messages).digests, 0)
        assert (kept is not None) == (count > REHASHED_MESSAGES)
        assert kept is None or len(kept.ends) == count - REHASHED_MESSAGES


@pytest.mark.parametrize(
    "other",
    [
        body([*said(20), NEXT]),
        body([SYSTEM, *said(20)]),
        body(
            [SYSTEM, SYSTEM, *said(20)],
            head=b'{"stream":true,"model":"a longer name", "messages" : [ ',
        ),
        body([*said(19), NEXT]),
        body([*said(17), NEXT, NEXT]),
        body(said(20), end=b'],"tools":[{"messages":[1]}]}'),
    ],
)
def test_what_may_differ(other: bytes) -> None:
    """Instructions, other members and the newest messages: none of them is what is known."""
    assert is_fast(other, known(body(said(20))))


@pytest.mark.parametrize(
    "other",
    [
        body([b'{"role":"user","content":"_"}', *said(19, 1)]),
        body([*said(10), b'{"role":"user","content":"xx"}', *said(9, 11)]),
        body([NEXT, *said(20)]),
        body(said(3)),
        b'{"messages":[' + b", ".join(said(20)) + b"]}",
        b'{"meta":{"messages":[' + b",".join(said(20)) + b']},"messages":[]}',
        body([*said(20), KNOWN_PREFIX_PLACEHOLDER]),
    ],
)
def test_what_may_not(other: bytes) -> None:
    """Anything else is split as a whole."""
    assert not is_fast(other, known(body(said(20))))


def test_nothing_is_kept_of_what_is_small_or_uneven() -> None:
    """It would save nothing, or could not be found again."""
    small = CHAT.parse_request(body(said(20)))
    assert CHAT.build_split(small, recognise((), small.messages).digests, 0) is None
    assert CHAT.build_split(small, NO_DIGESTS, 0) is None
    assert known(b'{"messages":[' + b",".join(said(5)) + b", " + b",".join(said(5)) + b"]}") is None
    assert known(body([*said(10), b'{"role":"user","content":"\\ud83d"}'])) is None
    grown = CHAT.parse_request(
        body([*said(9), *said(1)], end=b", " + b",".join(said(9)) + b"]}"), known(body(said(10)))
    )
    assert isinstance(grown.messages, SlicedMessages)
    with patch.object(split, "MIN_SPLIT_BODY_BYTES", 0):
        assert CHAT.build_split(grown, recognise((), grown.messages).digests, 0) is None


@pytest.mark.parametrize("uneven", [1, 20])
def test_white_space_is_not_paid_for_every_message(uneven: int) -> None:
    """A gap may be as large as a body; written between all messages it would be gigabytes."""
    gap, tail = b" " * 100_000 + b",", b",".join(said(2_000))
    kept = (
        known(b'{"messages":[' + gap.join(said(uneven)) + b"," + tail + b"]}")
        if uneven > 1
        else None
    )
    text = b'{"messages":[' + gap.join(said(uneven + 1)) + b"," + tail + b"]}"
    request = CHAT.parse_request(text, kept)
    digests = recognise((), request.messages).digests
    assert measure_peak_bytes(lambda: CHAT.build_split(request, digests, 0)) < 4 * len(text)


def test_what_is_kept_is_what_is_counted() -> None:
    """White space, too, which is part of it."""
    splits, gap = Splits(), b" " * 100_000 + b","
    for number in range(200):
        splits.keep(number, known(b'{"messages":[' + gap.join(said(9)) + b"]}"))
    held = sum(len(split.gap) for _, split in splits.items())
    assert 0 < held <= splits.held_bytes <= MAX_SPLITS_BYTES


def test_a_body_is_not_kept() -> None:
    """What is kept holds places and hashes: of ten megabytes not one."""
    text = json.dumps({"messages": [{"role": "user", "content": "x" * 1_000_000}] * 10}).encode()
    kept = known(text)
    assert kept is not None
    assert kept.size < 4_000
    assert is_fast(text, kept)


# ── digests ───────────────────────────────────────────────────────────────────────────────────────


def view(raws: Sequence[bytes], seq: int = 0) -> View:
    return View(
        count=len(raws), digest=recognise((), raws).digest, chain=b"", seq=seq, end=0, asked_at=0.0
    )


@given(
    st.lists(st.integers(1, 14), max_size=8), st.integers(1, 14), st.integers(1, 16), st.booleans()
)
def test_recognised_by_what_is_known(
    counts: list[int], earlier: int, now: int, other: bool
) -> None:
    """The longest recorded attempt is found whatever the request before it has hashed."""
    views = [view(said(count), seq) for seq, count in enumerate(counts)]
    views += [view([*said(2), NEXT], 99)] if other else []
    kept = known(body(said(earlier)), views[: len(views) // 2])
    request = CHAT.parse_request(body(said(now)), kept)
    found, whole = recognise(views, request.messages), recognise(views, said(now))
    assert (found.digest, found.seen) == (whole.digest, whole.seen)


# ── kept for all threads ──────────────────────────────────────────────────────────────────────────


def test_the_last_ones_that_fit_are_kept() -> None:
    """What was used last stays; nothing is larger than the whole."""
    one = known(body(said(20)))
    assert one is not None
    splits = Splits(max_bytes=2 * one.size)
    splits.keep("a", one)
    splits.keep("b", one)
    splits.keep("a", one)
    splits.keep("c", one)
    assert [name for name in "abc" if splits.get(name)] == ["a", "c"]
    splits.keep("a", None)
    splits.keep("b", one)
    assert [name for name in "abc" if splits.get(name)] == ["b", "c"]
    splits.keep("d", known(body(said(3_000))))
    assert [name for name in "abcd" if splits.get(name)] == ["b", "c"]


def test_the_seed_tells_histories_apart() -> None:
    """What another server keeps of the same says nothing here; what goes on from what is kept,
    keeps its seed."""
    text = b'{"messages":[' + b",".join([SYSTEM, *said(20)]) + b"]}"
    request = CHAT.parse_request(text)
    with patch.object(split, "MIN_SPLIT_BODY_BYTES", 0):
        one, other = (
            CHAT.build_split(request, recognise((), request.messages).digests, seed)
            for seed in (1, 2)
        )
        assert one is not None
        assert other is not None
        assert one.running_hash.digest() != other.running_hash.digest()
        assert one.find_in(text) == other.find_in(text) is not None
        again = CHAT.parse_request(text, one)
        longer = CHAT.build_split(again, recognise((), again.messages).digests, 2)
    assert longer is not None
    assert longer.running_hash.seed == 1
