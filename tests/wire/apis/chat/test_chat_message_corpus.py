"""What is read out of odd messages stays what it was when the first threads were stored.

message_corpus.jsonl holds 298 messages as clients may send them, with what was read out of them
when the file was made: a stored thread is recognised by these very fingerprints. None is nested
deeper than each Python reads, whose limits lie between 990 and 10 000 levels.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from om_proxy.agents.models.encodings import count_message
from om_proxy.agents.transcript_text import render_transcript
from om_proxy.memory.model import EMPTY_CHAIN, Item, Message
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.chat.chat_message import read_item, read_text
from om_proxy.wire.apis.message_parts import summarize_message

CORPUS = Path(__file__).with_name("message_corpus.jsonl")
KEY = b"key of a tenant"
MODELS = ("gpt-4o", "claude-sonnet-4", "gemini-2.5-pro")
READ = [json.loads(line) for line in CORPUS.read_text().splitlines()]


def describe(raw: bytes) -> dict[str, Any]:
    """All that anything reads out of a message; texts as digests where they are long."""
    is_stored = True
    try:
        read = read_item(raw, KEY)
    except Unreadable:
        is_stored = False
        read = Item(raw, "user", bytes(16))
    message = Message(1, read, EMPTY_CHAIN, 0, 1_684_756_800.0)
    observed = render_transcript([message], ZoneInfo("UTC"), tokens=count_bytes, clip_tokens=4_000)
    images = [(number, image.url) for number, image in observed.images]
    return {
        "role": read.role,
        "fingerprint": read.fp.hex(),
        "calls": list(read.calls),
        "answers": read.answers,
        "tokens": [count_message(raw, count_bytes, model, "chat") for model in MODELS],
        "text": shorten(read_text(raw)),
        "summary": shorten(repr(summarize_message(raw, "chat"))) if is_stored else None,
        "observed": shorten(repr((observed.text, images))),
    }


def count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def shorten(text: str) -> str:
    if len(text) <= 60:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@pytest.mark.parametrize("number", range(len(READ)))
def test_a_message_is_read_as_ever(number: int) -> None:
    """Its fingerprint, calls, token counts, and its texts for prompts, notes and other threads."""
    raw = READ[number]["raw"].encode("utf-8", "surrogateescape")
    assert describe(raw) | {"raw": READ[number]["raw"]} == READ[number]
