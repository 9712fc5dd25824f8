"""A thread is taken out of the events of a log that it shared."""

from __future__ import annotations

import json

import pytest

from om_proxy.storage.shared.event_encoding import (
    EventRemoval,
    encode_event,
    remove_texts,
    remove_thread,
)
from tests.storage.event_contract import activation, started

NAMES = ["t", "ü", "a\ud800b", 'a"b\\', "t\nt"]


def write_rows(*threads: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Return a call for each tuple of threads: its start and its end, without texts."""
    rows: list[tuple[int, str, str]] = []
    for number, names in enumerate(threads):
        for event in (started(str(number), names), activation(str(number))):
            _, type_, data = encode_event(event)
            rows.append((len(rows), type_, remove_texts(type_, data)))
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_calls_of_one_thread_go(name: str) -> None:
    """A name that begins another one is not that other one."""
    rows = write_rows((name,), (f"{name}x",), (), (name, name))
    assert remove_thread(rows, name) == EventRemoval([0, 1, 6, 7], [])


@pytest.mark.parametrize("name", NAMES)
def test_calls_of_several_threads_lose_a_name(name: str) -> None:
    """All else of them stays as it is."""
    rows = write_rows((name, "other"), ("other", "another"))
    [(id_, data)] = (removal := remove_thread(rows, name)).changed
    assert (id_, removal.deleted) == (0, [])
    assert json.loads(data) == json.loads(rows[0][2]) | {"threadIds": ["other"]}
    assert data.isascii()


def test_an_event_of_a_newer_release_is_passed_over() -> None:
    """Its whole data is null by then."""
    rows = [*write_rows(("t",)), (9, "data-om-newer", remove_texts("data-om-newer", '{"x": "t"}'))]
    assert remove_thread(rows, "t") == EventRemoval([0, 1], [])
