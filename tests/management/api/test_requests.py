"""Queries, bodies and versions of the admin API: what is parsed, and which error names what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.inspect import IntType, Metadata, StructType, UnionType, type_info

from om_proxy.common.errors import BadRequest
from om_proxy.management.api.requests import (
    NoChange,
    ThreadQuery,
    describe_taken,
    parse_body,
    parse_query,
)
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.management.api.routes.memory_work import ObserveRequest, ReflectRequest
from om_proxy.management.api.routes.stats import StatsQuery
from om_proxy.management.api.routes.threads import ThreadListQuery, TitleChange

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


@pytest.mark.parametrize(
    ("query_type", "query", "words"),
    [
        (StatsQuery, b"by=nix", "by takes one of day, model, resource, thread. What the"),
        (
            StatsQuery,
            b"from=2026-03-01",
            "from takes a number. From the day of this moment on, in unix seconds.",
        ),
        (StatsQuery, b"to=soon", "in unix seconds."),
        (StatsQuery, b"limit=0", "limit takes a whole number from 1 to 1 000."),
        (
            StatsQuery,
            b"since=1",
            "has no since; it takes by, cursor, from, limit, model, resource, tenant, to",
        ),
        (ThreadListQuery, b"state=nix", "state takes one of active, failing, observed, parked."),
    ],
)
def test_a_refused_query_is_told_what_to_send(
    query_type: type[Struct], query: bytes, words: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_query(query_type, query)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("body_type", "body", "words"),
    [
        (ObserveRequest, b'{"wait": 99}', "wait takes a number from 0 to 60. Seconds"),
        (ObserveRequest, b'{"all": "yes"}', "all takes true or false."),
        (ObserveRequest, b'{"more": 1}', "has no more; it takes all, wait"),
        (ReflectRequest, b'{"instruction": 3}', "text of at most 4000 characters or null. For"),
        (TitleChange, b"{}", "title must be there: text or null. Pinned;"),
        (NoChange, b'{"more": 1}', "has no more; it takes no names"),
        (dict, b"[]", "the body is a JSON object"),
    ],
)
def test_a_refused_body_is_told_what_to_send(body_type: type, body: bytes, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_body(body_type, body, JSON)
    assert words in str(caught.value)


@pytest.mark.parametrize("route", ADMIN_ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_each_name_that_is_sent_has_words_for_its_values(route: AdminRoute) -> None:
    for struct in (route.query, route.body):
        info = type_info(struct) if struct is not None else None
        for field in info.fields if isinstance(info, StructType) else ():
            assert describe_taken(field, may_be_null=False).endswith(".")


def test_no_value_of_a_body_is_in_its_error() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_body(TitleChange, b'{"title": ["secret words"]}', JSON)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("content_type", [b"", b"text/plain", b"application/jsonp"])
def test_a_body_says_that_it_is_json(content_type: bytes) -> None:
    with pytest.raises(BadRequest, match="Content-Type"):
        parse_body(NoChange, b"{}", [(b"content-type", content_type)])


def test_an_empty_body_says_nothing() -> None:
    """Without its type too, but not where a browser may have sent it for a page of another site."""
    assert parse_body(NoChange, b"", JSON) == NoChange()
    assert parse_body(NoChange, b"", [(b"accept", b"*/*")]) == NoChange()
    for header in ((b"origin", b"null"), (b"sec-fetch-site", b"cross-site")):
        with pytest.raises(BadRequest, match="Content-Type"):
            parse_body(NoChange, b"", [header])
    with pytest.raises(BadRequest, match="title must be there"):
        parse_body(TitleChange, b"", [])


def _list_numbers(info: Any) -> list[IntType]:
    """Return the whole numbers among the types of a field."""
    match info:
        case Metadata(type=inner):
            return _list_numbers(inner)
        case UnionType(types=types):
            return [number for inner in types for number in _list_numbers(inner)]
        case IntType():
            return [info]
        case _:
            return []


@pytest.mark.parametrize("route", ADMIN_ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_numbers_that_are_sent_are_bounded(route: AdminRoute) -> None:
    """The store would break off at a number of more than 64 bits, as if it were away."""
    bodies = [route.body] if isinstance(route.body, type) else []
    for struct in (route.query, *bodies):
        assert issubclass(struct, Struct)
        info = type_info(struct)
        assert isinstance(info, StructType)
        numbers = {field.encode_name: _list_numbers(field.type) for field in info.fields}
        assert [name for name, found in numbers.items() for one in found if one.le is None] == []
