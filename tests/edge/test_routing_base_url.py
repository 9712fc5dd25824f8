"""Threads that a base URL names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.common.errors import BadRequest
from om_proxy.edge.headers import NOT_FORWARDED, select_request_headers
from om_proxy.edge.routing import has_path_thread, split_path, take_names_from_path
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.naming import normalize_name


def scope(path: bytes, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"raw_path": path, "path": path.decode("latin-1"), "headers": list(headers)}


@pytest.mark.parametrize(
    ("path", "thread", "resource", "rest"),
    [
        (b"/t/kitchen/v1/chat/completions", "kitchen", None, b"/v1/chat/completions"),
        (b"/t/kitchen/chat/completions", "kitchen", None, b"/chat/completions"),
        (b"/r/ada/t/kitchen/v1/models", "kitchen", "ada", b"/v1/models"),
        (b"/t/kitchen", "kitchen", None, b"/"),
        (b"/t/kitchen/", "kitchen", None, b"/"),
        (b"/t/a%20b/v1", "a%20b", None, b"/v1"),
        (b"/t/a%2Fb/v1", "a/b", None, b"/v1"),
        (b"/t/it's/v1/x", "it%27s", None, b"/v1/x"),
        (b"/t/t/v1", "t", None, b"/v1"),
        (b"/r/t/t/r/v1", "r", "t", b"/v1"),
        (
            b"/t/k/v1/chat%2fcompletions",
            "k",
            None,
            b"/v1/chat%2fcompletions",
        ),  # no more is decoded than the name
        (b"/t/k//v1", "k", None, b"//v1"),
        (b"/t/k/v1/t/r", "k", None, b"/v1/t/r"),
    ],
)
def test_split(path: bytes, thread: str, resource: str | None, rest: bytes) -> None:
    """Splitting gives the names as a header carries them, and the rest of the path byte for
    byte."""
    assert split_path(path) == (thread, resource, rest)


@pytest.mark.parametrize(
    "path",
    [
        b"/t/",
        b"/t//v1",
        b"/t/%20/v1",
        b"/t/./v1",
        b"/t/../v1",
        b"/t/%2e%2E/v1",
        b"/r/../t/k/v1",
        b"/t/a%zz/v1",
        b"/t/%ff/v1",
        b"/t/a%0ab/v1",
        b"/t/\xc3\xbc/v1",
        b"/t/" + b"x" * 257 + b"/v1",
        b"/r/ada/v1/chat/completions",
        b"/r/ada",
        b"/r//t/k/v1",
        b"/t/a/t/b/v1",
        b"/t/a/r/ada/t/b/v1",
    ],
)
def test_no_name(path: bytes) -> None:
    """A prefix without a name is refused on any route, and the message says what to do."""
    with pytest.raises(BadRequest) as caught:
        take_names_from_path(scope(path))
    assert caught.value.code == "om_bad_path"


@pytest.mark.parametrize(
    "path", [b"/v1/chat/completions", b"/t", b"/r", b"/tt/k/v1", b"/v1/t/k", b"/", b"*", b"/T/k/v1"]
)
def test_other_paths_stay(path: bytes) -> None:
    """A path without a prefix leaves the request unchanged. It may name a thread by its headers."""
    request = scope(path, (b"x-om-thread", b"t"))
    assert take_names_from_path(request) is request
    assert not has_path_thread(request)


def test_headers_win() -> None:
    """A header wins over the path for each of the two names. The path's names are never sent
    upstream."""
    rules = IdentityRules()
    request = take_names_from_path(scope(b"/r/ada/t/kitchen/v1", (b"x-om-thread", b"hall")))
    assert identify(request["headers"], rules, b"s").key == ("local", "ada", "hall")
    request = take_names_from_path(
        scope(b"/r/ada/t/kitchen/v1", (b"x-resource-id", b"bob"), (b"a", b"b"))
    )
    assert identify(request["headers"], rules, b"s").key == ("local", "bob", "kitchen")
    assert select_request_headers(request["headers"], NOT_FORWARDED | {b"x-resource-id"}) == [
        (b"a", b"b")
    ]
    assert has_path_thread(request)


def test_an_unfilled_template_names_nothing() -> None:
    """An unfilled template is ignored, as in a header."""
    request = take_names_from_path(scope(b"/t/%7B%7BCHAT_ID%7D%7D/v1"))
    assert identify(request["headers"], IdentityRules(), b"s").reason == "no-thread"


@settings(deadline=None)
@given(st.binary(max_size=40), st.sampled_from([b"/t/", b"/r/", b"/r/a/t/"]))
def test_whatever_follows(tail: bytes, prefix: bytes) -> None:
    """Any path is refused, or names what can be stored and leaves a path that begins with a
    slash."""
    try:
        named = split_path(prefix + tail)
    except BadRequest:
        return
    assert named.path.startswith(b"/")
    request = take_names_from_path(scope(prefix + tail))
    key = identify(request["headers"], IdentityRules(), b"s").key
    assert key is None or (
        normalize_name(key.thread) == key.thread and normalize_name(key.resource) == key.resource
    )
