"""Ids of messages and conversations, as models write them."""

from __future__ import annotations

import pytest

from om_proxy.memory.recall.message_ids import (
    IdRange,
    MessageId,
    parse_label,
    parse_message_id,
    write_message_id,
)

LABEL = "3f9c2a7714e0b6d2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m12", MessageId(12)),
        ("M12", MessageId(12)),
        ("12", MessageId(12)),
        (" [m12] ", MessageId(12)),
        ("m0", MessageId(0)),
        ("m-1", MessageId(-1)),
        (f"{LABEL[:8]}.m40", MessageId(40, LABEL[:8])),
        (f"[{LABEL}.M40]", MessageId(40, LABEL)),
        ("m12-m40", IdRange(MessageId(12), MessageId(40))),
        ("[m12 – m40]", IdRange(MessageId(12), MessageId(40))),
        (f"{LABEL}.m1-m2", IdRange(MessageId(1, LABEL), MessageId(2, LABEL))),
        ("", None),
        ("m", None),
        ("p0", None),
        ("12.5", None),
        ("m" + "9" * 30, None),
        (f"{LABEL[:5]}.m1", None),
    ],
)
def test_message_ids(text: str, expected: MessageId | IdRange | None) -> None:
    assert parse_message_id(text) == expected


def test_what_is_written_is_read() -> None:
    for seq, label in ((1, ""), (812, LABEL)):
        read = parse_message_id(write_message_id(seq, label))
        assert read == MessageId(seq, label[:8])


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (LABEL[:6], LABEL[:6]),
        (f"[{LABEL[:8].upper()}]", LABEL[:8]),
        (LABEL, LABEL),
        (LABEL[:5], None),
        (LABEL + "0", None),
        ("Trip to Rome", None),
    ],
)
def test_labels(text: str, label: str | None) -> None:
    assert parse_label(text) == label
