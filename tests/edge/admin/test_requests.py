"""Queries, bodies and versions of the admin API: what is parsed, and which error names what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.edge.admin.requests import (
    NoChange,
    ThreadListQuery,
    ThreadQuery,
    TitleChange,
    parse_body,
    parse_cursor,
    parse_etag,
    parse_query,
    write_cursor,
)
from om_proxy.errors import BadRequest
from om_proxy.memory.model import Key

JSON = [(b"content-type", b"application/json; charset=utf-8")]


def test_a_query_has_defaults() -> None:
    assert parse_query(ThreadListQuery, b"") == ThreadListQuery(limit=100)


def test_the_last_value_of_a_repeated_name_counts() -> None:
    found = parse_query(ThreadListQuery, b"limit=3&resource=a%20b&limit=4")
    assert (found.limit, found.resource) == (4, "a b")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        (b"limit=0", "limit"),
        (b"limit=1001", "limit"),
        (b"limit=many", "limit"),
        (b"limit=", "limit"),
        (b"nothing=1", "nothing"),
        (b"Tenant=1", "Tenant"),
    ],
)
def test_a_fault_of_the_query_is_named(query: bytes, param: str) -> None:
    with pytest.raises(BadRequest, match="the query") as caught:
        parse_query(ThreadListQuery, query)
    assert caught.value.param == param


@given(st.binary(max_size=60))
def test_any_query_is_parsed_or_refused(query: bytes) -> None:
    for query_type in (ThreadListQuery, ThreadQuery):
        try:
            parse_query(query_type, query)
        except BadRequest:
            continue


@pytest.mark.parametrize(
    ("body_type", "body", "param"),
    [
        (TitleChange, b"{}", "title"),
        (TitleChange, b'{"title": 3}', "title"),
        (TitleChange, b'{"title": null, "more": 1}', "more"),
        (NoChange, b'{"more": 1}', "more"),
        (dict, b"[]", None),
        (TitleChange, b"{", None),
        (TitleChange, b"\xff", None),
    ],
)
def test_a_fault_of_the_body_is_named(body_type: type, body: bytes, param: str | None) -> None:
    with pytest.raises(BadRequest, match="the body") as caught:
        parse_body(body_type, body, JSON)
    assert caught.value.param == param


def test_no_value_of_a_body_is_in_its_error() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_body(TitleChange, b'{"title": ["secret words"]}', JSON)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("content_type", [b"", b"text/plain", b"application/jsonp"])
def test_a_body_says_that_it_is_json(content_type: bytes) -> None:
    with pytest.raises(BadRequest, match="Content-Type"):
        parse_body(NoChange, b"{}", [(b"content-type", content_type)])


def test_an_empty_body_says_nothing() -> None:
    assert parse_body(NoChange, b"", JSON) == NoChange()


@pytest.mark.parametrize(
    ("value", "version"),
    [(b'"7"', 7), (b'W/"7"', 7), (b' "-3" ', -3), (b"*", None), (None, None)],
)
def test_an_etag_is_a_version(value: bytes | None, version: int | None) -> None:
    headers = [] if value is None else [(b"if-match", value)]
    assert parse_etag(headers, b"if-match") == version


@pytest.mark.parametrize("value", [b"7", b'"x"', b'"7", "8"', b'""', b'"' + b"9" * 30 + b'"'])
def test_another_etag_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_etag([(b"if-match", value)], b"if-match")
    assert caught.value.param == "if-match"


def test_a_cursor_continues_its_list() -> None:
    key = Key("tenant", "res ource", "thr/ead")
    assert parse_cursor(write_cursor(key), "tenant") == key
    assert parse_cursor(write_cursor(key), None) == key
    assert parse_cursor("", "tenant") is None


@pytest.mark.parametrize("cursor", ["x", "a\tb", "a\tb\tc\td", "other\tb\tc"])
def test_the_cursor_of_another_list_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_cursor(cursor, "tenant")
    assert caught.value.param == "cursor"
