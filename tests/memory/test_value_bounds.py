"""Each number, time and text of a memory has bounds."""

from __future__ import annotations

from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec.structs import replace

from om_proxy.memory.ledger import Account, PromptMark, ThreadLedger
from om_proxy.memory.model import (
    Beginning,
    Cell,
    Failures,
    Memory,
    Message,
    Observation,
    ObservationLog,
    Part,
    Pin,
    Reflection,
    View,
)
from om_proxy.memory.value_bounds import find_bad_fields
from tests.memory.building import KEY, chat

UNBOUNDED = {
    "version",  # the store sets these
    "row_id",
    "put_aside",
}
KINDS = (
    *(Memory, ObservationLog, Message, Observation, Reflection, Part, Pin, View, Cell),
    *(Failures, Beginning, Account, PromptMark, ThreadLedger),
)


def list_plain_types(hint: Any) -> set[Any]:
    """Return the types of a hint that have no bounds."""
    if hint in (int, float, str):
        return {hint}
    if get_origin(hint) in (Union, tuple) or type(hint).__name__ == "UnionType":
        return set().union(*map(list_plain_types, get_args(hint)))
    return set()


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_bounds(kind: Any) -> None:
    """A new field, too: whatever a row says is checked by its type."""
    hints = get_type_hints(kind, include_extras=True)
    names = getattr(kind, "__struct_fields__", None) or kind._fields
    unbounded = {name for name in names if list_plain_types(hints[name])}
    assert unbounded - UNBOUNDED == set()


def test_what_is_out_of_bounds_is_named() -> None:
    message = chat(1, 9)[0]
    assert find_bad_fields(message) == []
    assert find_bad_fields(replace(message, at=float("nan"), tokens=-1)) == ["tokens", "at"]
    assert find_bad_fields(Memory(key=KEY, next_seq=2**62, timezone="\x00")) == ["next_seq"]
