"""A cursor continues the list that gave it, and no other."""

from __future__ import annotations

import base64

import pytest

from om_proxy.common.errors import BadRequest
from om_proxy.management.api import cursors
from om_proxy.management.api.cursors import parse_cursor, write_cursor
from om_proxy.memory.model import Key
from om_proxy.storage.values.listing import ThreadPlace

PLACE = ThreadPlace(Key("tenant", "res ource", "thr/ead\u00e9"), 1_700_000_000.123456, 7)
LISTED = ("threads", "tenant", None, "recent")


def test_a_cursor_continues_its_list() -> None:
    cursor = write_cursor(LISTED, PLACE)
    assert parse_cursor(cursor, LISTED, ThreadPlace) == PLACE
    assert set(cursor) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), (
        "it may stand in a query as it is"
    )


@pytest.mark.parametrize("nothing", [None, ""])
def test_without_a_cursor_a_list_begins(nothing: str | None) -> None:
    assert parse_cursor(nothing, LISTED, ThreadPlace) is None


OTHERS = [
    write_cursor(("resources", "tenant", None, "recent"), PLACE),
    write_cursor(("threads", "other", None, "recent"), PLACE),
    write_cursor(("threads", "tenant", None, "name"), PLACE),
    write_cursor(("threads", "tenant", "a", "recent"), PLACE),
    write_cursor(LISTED, 7),
    write_cursor(LISTED, PLACE)[:-3],
    write_cursor(LISTED, PLACE) + "AA",
    "x",
    "tenant\tresource\tthread",
    "é",
    base64.urlsafe_b64encode(b"[1]").decode(),
    base64.urlsafe_b64encode(b'["x", 1, 2]').decode(),
    "A" * 10_000,
]


@pytest.mark.parametrize("cursor", OTHERS)
def test_the_cursor_of_another_list_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_cursor(cursor, LISTED, ThreadPlace)
    assert caught.value.param == "cursor"


def test_the_cursor_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = write_cursor(LISTED, PLACE)
    monkeypatch.setattr(cursors, "CURSOR_RELEASE", 2)
    with pytest.raises(BadRequest):
        parse_cursor(cursor, LISTED, ThreadPlace)
