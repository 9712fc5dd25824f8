"""Units that are not the elements of their list: they are the same, however much of it is known."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.transcript import sent_history
from om_proxy.memory.transcript.sent_history import REHASHED_MESSAGES, Digests, recognise
from om_proxy.wire.apis import split
from om_proxy.wire.apis.split import (
    KNOWN_PREFIX_PLACEHOLDER,
    SlicedMessages,
    Split,
    Units,
    build_units_split,
    find_elements_with,
    join_marked,
    join_starts,
)

# A made-up API: a list is as many units as it has texts, and texts beside each other are one unit.
Element = str | list[str]
ELEMENTS = st.one_of(st.just("said"), st.lists(st.sampled_from("abc"), min_size=1, max_size=3))


@pytest.fixture(autouse=True, scope="module")
def _of_short_lists_too() -> Iterator[None]:
    with (
        patch.object(sent_history, "MIN_DIGESTED_BYTES", 0),
        patch.object(split, "MIN_UNITS_BODY_BYTES", 0),
    ):
        yield


def find_starts(elements: Sequence[Element]) -> array[int]:
    starts = array("L")
    for index, element in enumerate(elements):
        if isinstance(element, list):
            starts.extend([index] * len(element))
        elif not index or isinstance(elements[index - 1], list):
            starts.append(index)
    return starts


def find_marked(elements: Sequence[Element]) -> array[int]:
    return array("L", [index for index, element in enumerate(elements) if "b" in element])


def read_unit(raws: Sequence[bytes], part: int) -> bytes:
    first = json.loads(raws[0])
    said = [first[part]] if isinstance(first, list) else [json.loads(raw) for raw in raws]
    return json.dumps(said).encode()


def write_body(elements: Sequence[Element]) -> bytes:
    return b'{"messages":[' + b",".join(json.dumps(e).encode() for e in elements) + b"]}"


def read(body: bytes, known: Split | None = None) -> Units:
    """Read the units of a body, as an API does."""
    taken = known.take_out_of(body) if known else None
    if known is None or taken is None:
        whole = json.loads(body)["messages"]
        raws = tuple(json.dumps(e).encode() for e in whole)
        return Units(raws, find_starts(whole), read_unit, find_marked(whole))
    start, frame = taken
    new = json.loads(frame)["messages"]
    placeholder = new.pop(0)
    assert json.dumps(placeholder).encode() == KNOWN_PREFIX_PLACEHOLDER
    raws = tuple(json.dumps(e).encode() for e in new)
    elements = SlicedMessages(body, start, known, raws)
    marked = join_marked(known, find_marked(new))
    return Units(elements, join_starts(known, find_starts(new)), read_unit, marked)


def keep(body: bytes, units: Units) -> tuple[Digests, Split | None]:
    digests = recognise((), units).digests
    return digests, build_units_split(body, (), units, digests, 0, "messages")


def write_units(elements: Sequence[Element]) -> list[bytes]:
    units: list[list[str]] = []
    for index, element in enumerate(elements):
        if isinstance(element, list):
            units += [[text] for text in element]
        elif index and isinstance(elements[index - 1], str):
            units[-1].append(element)
        else:
            units.append([element])
    return [json.dumps(unit).encode() for unit in units]


@given(st.lists(ELEMENTS, max_size=12))
def test_units_are_read_from_their_elements(elements: list[Element]) -> None:
    units = read(write_body(elements))
    assert list(units) == write_units(elements)
    for index in range(len(units)):
        held = [elements[e] for e in units.find_elements(index)]
        assert len(held) == 1 or all(isinstance(element, str) for element in held)
        assert units.find_part(index) < units.count_parts(units.find_elements(index).start)


@given(st.lists(ELEMENTS, min_size=6, max_size=14), st.lists(ELEMENTS, max_size=5))
def test_what_is_known_changes_nothing(elements: list[Element], more: list[Element]) -> None:
    """A request that goes on from a known one has the same units, and the same digest."""
    if isinstance(elements[-1], str):
        elements.append(["end"])  # the step ends here: it does not grow
    body, longer = write_body(elements), write_body([*elements, *more])
    digests, known = keep(body, read(body))
    grown = read(longer, known)
    assert list(grown) == write_units([*elements, *more])
    assert grown.marked == find_marked([*elements, *more])
    assert recognise((), grown).digest == recognise((), read(longer)).digest
    assert grown.digests.count == digests.count
    _, again = keep(longer, grown)
    assert list(read(longer, again)) == list(grown)


def test_results_of_one_element_are_known_together() -> None:
    elements: list[Element] = [["q"], "call", ["a", "b", "c"], "call", ["a", "b"]]
    units = read(write_body(elements))
    digests, known = keep(write_body(elements), units)
    assert len(units) - REHASHED_MESSAGES == 4  # in the middle of the first three results
    assert digests.count == 2
    assert known is not None
    assert (len(known.ends), list(known.starts)) == (2, [0, 1])


@given(st.lists(ELEMENTS, min_size=6, max_size=14), st.lists(ELEMENTS, max_size=5))
def test_elements_are_found_by_their_words(elements: list[Element], more: list[Element]) -> None:
    """In what is known as in what is new."""
    elements.append(["end"])
    body, longer = write_body(elements), write_body([*elements, *more])
    _, known = keep(body, read(body))
    expected = [i for i, e in enumerate([*elements, *more]) if "said" in e or "b" in e]
    for units in (read(longer), read(longer, known)):
        assert find_elements_with(units.elements, (b'"said"', b'"b"')) == expected
        assert find_elements_with(units.elements, (b"said no more",)) == []
