"""Master keys wrap data keys and the store's secret."""

from __future__ import annotations

import pytest

from om_proxy.errors import UnopenedText
from om_proxy.identity.encryption_keys import name_master_key
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.encryption.row_cipher import WrappedKey

OLD, NEW = bytes([1] * 32), bytes([2] * 32)


def seal_text(masters: MasterKeys, wrapped: WrappedKey) -> bytes:
    return masters.unwrap(wrapped).seal(b"message", 1, b"raw", b"text")


def test_the_first_key_wraps_and_each_unwraps() -> None:
    old, both = MasterKeys([OLD]), MasterKeys([NEW, OLD])
    assert both.ids == (name_master_key(NEW), name_master_key(OLD))
    stored = old.create_key().stored
    sealed = seal_text(old, stored)
    assert both.unwrap(stored).open(b"message", 1, b"raw", sealed) == b"text"
    assert both.create_key().stored.master == name_master_key(NEW)


def test_a_rewrapped_key_is_the_same_and_needs_the_old_master_no_more() -> None:
    old, both, new = MasterKeys([OLD]), MasterKeys([NEW, OLD]), MasterKeys([NEW])
    stored = old.create_key().stored
    rewrapped = both.rewrap(stored)
    sealed = seal_text(old, stored)
    assert new.unwrap(rewrapped).open(b"message", 1, b"raw", sealed) == b"text"
    with pytest.raises(UnopenedText, match=name_master_key(NEW)):
        old.unwrap(rewrapped)


def test_a_wrapped_key_under_another_id_does_not_open() -> None:
    masters = MasterKeys([OLD])
    first, second = masters.create_key().stored, masters.create_key().stored
    with pytest.raises(UnopenedText):
        masters.unwrap(first._replace(id=second.id))


def test_the_secret_comes_back() -> None:
    sealed = MasterKeys([OLD]).seal_secret(b"s" * 32)
    assert MasterKeys([NEW, OLD]).open_secret(sealed) == b"s" * 32
    with pytest.raises(UnopenedText):
        MasterKeys([NEW]).open_secret(sealed)
    assert b"s" * 32 not in sealed


def test_master_keys_do_not_show_their_bytes() -> None:
    text = repr(MasterKeys([b"0123456789abcdef0123456789abcdef"]))
    assert "0123456789abcdef" not in text
