"""The link that signs in once, and the session that it opens."""

from __future__ import annotations

import pytest

from om_proxy.management.api.sign_in import (
    LINK_LIFE_S,
    SESSION_HEADER,
    SESSION_LIFE_S,
    SignIn,
    name_cookie,
)
from tests.e2e.running import Clock


def find_token(sign_in: SignIn) -> bytes:
    return sign_in.link_to("http://h").rpartition("/")[2].encode()


def test_the_link_is_taken_once() -> None:
    """A wrong token uses nothing up."""
    sign_in = SignIn(Clock())
    token = find_token(sign_in)
    tries = [b"", b"\xff", token[:-1], token, token]
    assert [sign_in.take_link(one) for one in tries] == [False, False, False, True, False]


def test_the_link_lives_for_minutes() -> None:
    clock = Clock()
    sign_in = SignIn(clock)
    clock.now += LINK_LIFE_S
    assert not sign_in.take_link(find_token(sign_in))


def test_a_session_lasts_until_its_end() -> None:
    clock = Clock()
    sign_in = SignIn(clock)
    session = sign_in.open_session()
    cookie = (b"cookie", b"a=b; om-session-1=" + session)
    headers = [cookie, (SESSION_HEADER, sign_in.make_page_half(session))]
    assert sign_in.has_session(headers, b"om-session-1")
    assert not sign_in.has_session(headers, b"om-session-2")
    assert not SignIn(clock).has_session(headers, b"om-session-1")
    for half in (b"", b"1", sign_in.make_page_half(b"")):
        assert not sign_in.has_session([cookie, (SESSION_HEADER, half)], b"om-session-1")
    clock.now += SESSION_LIFE_S
    assert not sign_in.has_session(headers, b"om-session-1")


@pytest.mark.parametrize(
    "value", [b"", b".", b"x.y", b"99999999999", b"99999999999.00", b"\xff.\xff"]
)
def test_another_value_is_no_session(value: bytes) -> None:
    assert not SignIn().has_session([(b"cookie", b"s=" + value)], b"s")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8400", b"om-session-8400"),
        ("localhost", b"om-session-80"),
        ("[::1]:8400", b"om-session-8400"),
        ("[::1]", b"om-session-80"),
    ],
)
def test_the_cookie_is_named_after_the_port(host: str, name: bytes) -> None:
    assert name_cookie(host) == name
