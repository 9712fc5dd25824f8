"""Master keys wrap data keys and the store's secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import UnopenedText
from om_proxy.settings.identity.encryption_keys import name_master_key
from om_proxy.storage.encryption import master_keys
from om_proxy.storage.encryption.master_keys import (
    DATA_KEY_BYTES,
    OVERHEAD_BYTES,
    DataKey,
    MasterKeys,
    create_secret,
    open_buffer,
    open_value,
    seal_value,
    wipe_buffer,
)
from om_proxy.storage.encryption.row_cipher import WrappedKey
from tests.support.process_memory import count_copies

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


# answers with bytes that it has anyway: a new object could take the place of what is looked for
KEY_USER = """
import os, sys
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.encryption.row_cipher import WrappedKey

masters = MasterKeys([bytes([1] * 32)])
for line in sys.stdin:
    command, *fields = line.split()
    if command == "drop":
        del held
    else:
        id_, master, wrapped = fields
        stored = WrappedKey(bytes.fromhex(id_), master, bytes.fromhex(wrapped))
        if command == "unwrap":
            held = masters.unwrap(stored)
        else:
            masters.rewrap(stored)
    os.write(1, b"done\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/PID/mem")
def test_no_copy_of_a_data_key_outlives_its_use() -> None:
    """Also none in memory that was freed and not used again. Only the stack keeps what OpenSSL's last
    call has left there, until the next one."""
    masters = MasterKeys([OLD])
    keys = [masters.create_key().stored for _ in range(2)]
    # the allocator writes over the first eight bytes of a buffer that is freed
    secrets = [bytes(masters._unwrap_secret(key)[8:]) for key in keys]
    unwrapped, rewrapped = (f"{key.id.hex()} {key.master} {key.wrapped.hex()}" for key in keys)
    user = subprocess.Popen(
        [sys.executable, "-c", KEY_USER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert user.stdin
    assert user.stdout
    counts = []
    try:
        for command in (f"unwrap {unwrapped}", "drop", f"rewrap {rewrapped}"):
            user.stdin.write(f"{command}\n")
            user.stdin.flush()
            assert user.stdout.readline() == "done\n"
            counts.append(count_copies(user.pid, secrets, with_stack=False))
    finally:
        user.kill()
        user.communicate()
    assert counts[0][0] > 0  # it would be found
    assert counts[1:] == [[0, 0], [0, 0]]


def test_a_secret_is_random_also_without_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, or where no more files can be opened."""
    with_device = {bytes(create_secret()) for _ in range(9)}
    monkeypatch.setattr(master_keys, "RANDOM_DEVICE", "/nowhere/urandom")
    without = {bytes(create_secret()) for _ in range(9)}
    monkeypatch.setattr(master_keys, "RANDOM_DEVICE", "/dev/null")  # gives too little
    secrets = with_device | without | {bytes(create_secret())}
    assert len(secrets) == 19
    assert {len(secret) for secret in secrets} == {DATA_KEY_BYTES}
    assert bytes(DATA_KEY_BYTES) not in secrets


SECRET = bytes(32)
PLACES = st.tuples(
    st.sampled_from([b"message", b"observation", b"thread"]),
    st.integers(0, 2**62),
    st.sampled_from([b"raw", b"text", b"title"]),
)


@given(place=PLACES, other=PLACES, value=st.binary(max_size=50))
def test_a_row_that_was_moved_does_not_open(
    place: tuple[bytes, int, bytes], other: tuple[bytes, int, bytes], value: bytes
) -> None:
    key = DataKey(bytes(16), bytearray(SECRET))
    sealed = key.seal(*place, value)
    if other == place:
        assert key.open(*other, sealed) == value
    else:
        with pytest.raises(UnopenedText):
            key.open(*other, sealed)


def test_a_value_opens_under_the_id_of_its_key_alone() -> None:
    """Even if another memory's key had the same bytes."""
    sealed = DataKey(bytes(16), bytearray(SECRET)).seal(b"message", 1, b"raw", b"text")
    with pytest.raises(UnopenedText):
        DataKey(bytes([1] * 16), bytearray(SECRET)).open(b"message", 1, b"raw", sealed)


def test_a_key_does_not_show_its_bytes() -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    assert repr(DataKey(bytes(16), bytearray(secret))) == "<DataKey 00000000>"


def test_a_secret_is_wiped_once_nothing_uses_its_key() -> None:
    secret = bytearray(b"0123456789abcdef0123456789abcdef")
    key = DataKey(bytes(16), secret)
    used_elsewhere = key
    del key
    sealed = used_elsewhere.seal(b"message", 1, b"raw", b"text")
    assert used_elsewhere.open(b"message", 1, b"raw", sealed) == b"text"
    del used_elsewhere
    assert secret == bytes(32)


KEY = AESGCM(bytes(32))
PLACE = b"om|message|abc|1|raw"


@given(value=st.binary(max_size=300), place=st.binary(max_size=60))
def test_a_value_opens_at_its_place(value: bytes, place: bytes) -> None:
    sealed = seal_value(KEY, value, place)
    assert (sealed[:1], len(sealed)) == (b"\x01", len(value) + OVERHEAD_BYTES)
    assert open_value(KEY, sealed, place) == value == open_buffer(KEY, sealed, place)


@given(value=st.binary(max_size=40), data=st.data())
def test_a_value_with_any_bit_flipped_does_not_open(value: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal_value(KEY, value, PLACE))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    for open_sealed in (open_value, open_buffer):
        with pytest.raises(UnopenedText):
            open_sealed(KEY, bytes(sealed), PLACE)


@given(value=st.binary(max_size=40), data=st.data())
def test_a_value_that_was_cut_or_lengthened_does_not_open(
    value: bytes, data: st.DataObject
) -> None:
    sealed = seal_value(KEY, value, PLACE)
    cut = sealed[: data.draw(st.integers(0, len(sealed) - 1))]
    for changed in (cut, sealed + b"\0"):
        with pytest.raises(UnopenedText):
            open_value(KEY, changed, PLACE)


def test_a_value_does_not_open_elsewhere_or_with_another_key() -> None:
    sealed = seal_value(KEY, b"text", PLACE)
    for key, place in ((KEY, b"om|message|abc|2|raw"), (AESGCM(bytes([1] * 32)), PLACE)):
        with pytest.raises(UnopenedText):
            open_value(key, sealed, place)


def test_equal_values_look_different() -> None:
    assert len({seal_value(KEY, b"text", PLACE) for _ in range(100)}) == 100


def test_a_wiped_buffer_has_its_length_and_no_other_byte() -> None:
    buffer = bytearray(b"secret")
    with memoryview(buffer):  # nobody can move it
        wipe_buffer(buffer)
    assert buffer == bytes(6)
