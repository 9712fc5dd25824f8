"""What a store promises is said in sentences, each of which a test shows."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from om_proxy.errors import StorageError
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.promises import (
    DURABILITY_SENTENCES,
    ENCRYPTED,
    ERASURE_SENTENCES,
    FAILOVER_SENTENCES,
    INDEXED,
    LOG_SENTENCES,
    NOT_ENCRYPTED,
    NOT_INDEXED,
    NOT_PROMISED,
    SEPARATE_KEYS,
    list_promises,
    try_describe,
)
from om_proxy.storage.store_description import Promise

SENTENCES = (
    *DURABILITY_SENTENCES.values(),
    *ERASURE_SENTENCES.values(),
    *LOG_SENTENCES.values(),
    *FAILOVER_SENTENCES.values(),
    ENCRYPTED,
    NOT_ENCRYPTED,
    INDEXED,
    NOT_INDEXED,
    *NOT_PROMISED,
    SEPARATE_KEYS,
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_each_sentence_has_a_test_of_its_name(sentence: str) -> None:
    name = "test_" + re.sub(r"\W+", "_", sentence)
    folder = Path(__file__).parent
    texts = (file.read_text(encoding="utf-8") for file in folder.rglob("test_*.py"))
    assert f"def {name}(" in "".join(chain.from_iterable(texts))


def test_what_is_not_promised_is_said_last() -> None:
    said = list_promises(Promise("any", "fsync", "now", 1))
    assert said[:2] == (DURABILITY_SENTENCES["fsync"], ERASURE_SENTENCES["now"])
    assert said[2:] == (NOT_ENCRYPTED, INDEXED, *NOT_PROMISED)
    encrypted = list_promises(Promise("any", "fsync", "now", 1, encrypted=True, has_index=False))
    assert encrypted[2:] == (ENCRYPTED, NOT_INDEXED, *NOT_PROMISED)
    apart = list_promises(
        Promise("any", "fsync", "now", 1, encrypted=True, separate_keys=True, has_index=False)
    )
    assert apart[2:] == (ENCRYPTED, NOT_INDEXED, SEPARATE_KEYS)
    copied = list_promises(Promise("redis", "fsync", "log", 1))
    assert copied[1] == FAILOVER_SENTENCES["redis"]
    rewriting = list_promises(Promise("any", "fsync", "rewrite", 1))
    assert rewriting[2:] == (LOG_SENTENCES["rewrite"], NOT_ENCRYPTED, INDEXED, *NOT_PROMISED)


async def test_a_store_that_cannot_be_asked_promises_nothing() -> None:
    class Away(ForwardingStore):
        @property
        def inner(self) -> Store:
            raise StorageError("away")

    assert await try_describe(Away()) is None
