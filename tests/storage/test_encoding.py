"""Values that every backend stores in the same form come back unchanged."""

from __future__ import annotations

import msgspec
import pytest

from om_proxy.memory.model import EMPTY_CHAIN, Memory, ObservationLog, Part
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.storage import encoding
from om_proxy.storage.encryption.row_cipher import PLAIN
from tests.memory.building import KEY
from tests.storage.memory_builder import small_things

HALVES = "\ud83d", "\ude00"  # two lone surrogates; joined they would be one character


@pytest.mark.parametrize("text", ["", "plain", "żółw 🐢", "\ufeffa", "a\x00b"])
def test_text_comes_back(text: str) -> None:
    assert encoding.decode_text(encoding.encode_text(text)) == text


def test_half_characters_do_not_come_back() -> None:
    """No prompt and no page can hold them, and a row that another program wrote may."""
    assert encoding.decode_text(encoding.encode_text(f"ż{HALVES[0]}b")) == "ż\ufffdb"
    assert encoding.decode_raw(b'{"content":"\\ud83d"}') == b'{"content":"\\ufffd"}'
    one = Round(b'{"content":"\\ud83d"}', (b"{}",))
    column = encoding.encode_look_ups(LookedUp((one,)))
    assert column
    assert encoding.decode_look_ups(column).rounds[0].assistant == b'{"content":"\\ufffd"}'


@pytest.mark.parametrize("calls", [(), ("call_1", "call_2"), HALVES, ('a"b', "żółw")])
def test_calls_come_back(calls: tuple[str, ...]) -> None:
    """Two lone surrogates are not joined."""
    assert encoding.decode_calls(encoding.encode_calls(calls)) == calls


@pytest.mark.parametrize("parts", [(), (Part("label", 1, 2, EMPTY_CHAIN, task="t"),)])
def test_parts_come_back(parts: tuple[Part, ...]) -> None:
    """No column is written if there are no parts."""
    column = encoding.encode_parts(parts)
    assert (encoding.decode_parts(column), column is None) == (parts, not parts)


def test_state_comes_back() -> None:
    """Every field of the state is a field of the memory or of its log. The cause is that of the
    memory's failures."""
    memory = Memory(
        key=KEY,
        log=ObservationLog(unproductive_tokens=9),
        turns=7,
        timezone="Asia/Tokyo",
        overrides=b"{}",
        shown_log_state=(3, 4),
    )
    state = encoding.decode_state(encoding.encode_state(memory, PLAIN), PLAIN)
    fields = encoding.ThreadState.__struct_fields__
    names = [name for name in fields if name not in ("cause", "sealed")]
    # by the name in the stored state, if that is another one
    field_of = {
        "shown": "shown_log_state",
        "unproductive_at": "unproductive_tokens",
        "log_tokens": "tokens",
    }
    for name in names:
        field = field_of.get(name, name)
        source = memory if hasattr(memory, field) else memory.log
        assert getattr(state, name) == getattr(source, field)


def test_fields_with_their_defaults_take_no_bytes() -> None:
    """A turn writes the whole state."""
    assert len(encoding.encode_state(Memory(key=KEY), PLAIN)) < 80


def test_no_field_of_a_memory_is_left_out() -> None:
    """The contract of every store keeps a memory of which each field has another value than its
    default: a line that is forgotten where a row is written or read is noticed."""
    of_the_store = {"key", "version", "row_id", "put_aside"}
    of_shared_logs = {"scope", "shared_log_ref", "other_threads_text"}  # shared_machine.py
    of_its_messages = {"next_seq", "next_id", "coverage", "covered_count", "covered_tokens"}
    lists = {"recent", "tail", "log", "chunks"}
    small, plain = small_things(), Memory(key=KEY)
    names = {one.name for one in msgspec.structs.fields(Memory)}
    assert names - small.keys() == of_the_store | of_shared_logs | of_its_messages | lists
    assert [name for name, value in small.items() if getattr(plain, name) == value] == []


def test_a_thread_with_its_own_log_has_no_sums() -> None:
    """The sums count only the threads that share their resource's log."""
    assert encoding.sum_for_resource(Memory(key=KEY)) == (0, 0, 0)
