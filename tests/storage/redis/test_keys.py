"""Names from outside make keys that never meet."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import ConfigError
from om_proxy.memory.model import Key
from om_proxy.storage.redis.keys import KeyNames, pack_names, split_names, unpack_key

NAMES = st.text(st.sampled_from("ab\0:{}/%é\U0010ffff"), max_size=4)
KEYS = st.builds(Key, NAMES, NAMES, NAMES)
OM = KeyNames("om")


@given(KEYS, KEYS)
def test_two_threads_have_two_keys(one: Key, other: Key) -> None:
    assert (OM.of_thread("row", one) == OM.of_thread("row", other)) == (one == other)


@given(KEYS, KEYS)
def test_packed_names_are_in_the_order_of_the_names(one: Key, other: Key) -> None:
    assert (pack_names(*one) < pack_names(*other)) == (one < other)


@given(KEYS, st.binary(max_size=3))
def test_packed_names_come_back(key: Key, rest: bytes) -> None:
    packed = pack_names(*key)
    assert unpack_key(packed) == key
    assert split_names(packed + b"\x92" + rest, 3) == (tuple(key), b"\x92" + rest)


def test_a_thread_and_its_shared_log_share_a_slot() -> None:
    """Redis places a key by what stands between its first brace and the next one."""
    keys = [Key("t}", "{r", "a"), Key("t}", "{r", "")]
    slots = [OM.of_thread("row", key).split("{", 1)[1].split("}", 1)[0] for key in keys]
    assert slots == ["t%7D/%7Br"] * 2


def test_no_kind_of_key_is_another() -> None:
    hostile = ("", ":", "a:b", "events", "{")
    keys = [
        *(OM.of_store(kind) for kind in ("events", "recent")),
        *(OM.of_tenant(kind, name) for kind in ("events", "recent") for name in hostile),
        *(
            OM.of_thread(part, Key(*names))
            for part in ("row", "events", "ledger")
            for names in itertools.product(hostile, repeat=3)
        ),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("prefix", ["", "a:b", "{om}", "a b", "x" * 64])
def test_a_prefix_that_cannot_be(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.prefix"):
        KeyNames(prefix)
