"""What a store promises is said in sentences, each of which a test shows."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.storage.base import Store
from om_proxy.storage.contract.status import Promise
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
    create_postgres_promise,
    create_redis_promise,
    create_sqlite_promise,
    list_promises,
    try_describe,
)

# of each kind of store, whatever its server is set to
DURABILITIES: dict[str, list[Promise]] = {
    "sqlite": [create_sqlite_promise(is_in_memory=in_memory) for in_memory in (False, True)],
    "postgres": [
        create_postgres_promise(flushes=flushes, commits_wait=waits)
        for flushes, waits in ((True, True), (True, False), (False, True))
    ],
    "redis": [create_redis_promise(durable) for durable in DURABILITY_SENTENCES],
}


def list_sentences(kind: str) -> list[str]:
    """Return every sentence that may be told of a store of this kind."""
    told: dict[str, None] = {}
    for promise in DURABILITIES[kind]:
        encrypted = promise._replace(encrypted=True, has_index=False)
        for each in (promise, encrypted, encrypted._replace(separate_keys=True)):
            told |= dict.fromkeys(list_promises(each))
    return [*told]


@cache
def list_test_names(kind: str) -> set[str]:
    """Return the names of all tests of this kind, also those that its classes inherit of a contract."""
    names: set[str] = set()
    for file in (Path(__file__).parent / kind).glob("test_*.py"):
        module = import_module(f"tests.storage.{kind}.{file.stem}")
        classes = [value for name, value in vars(module).items() if name.startswith("Test")]
        names |= {*vars(module), *(name for each in classes for name in dir(each))}
    return names


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [(kind, sentence) for kind in DURABILITIES for sentence in list_sentences(kind)],
)
def test_each_sentence_has_a_test_of_its_name(kind: str, sentence: str) -> None:
    """For each store that it may be told of."""
    assert "test_" + re.sub(r"\W+", "_", sentence) in list_test_names(kind)


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
