"""Entity tags: which version a change expects, and which answers a client has already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import BadRequest
from om_proxy.management.api.entity_tags import (
    is_known_to_client,
    parse_expected_version,
    write_entity_tag,
)

TAG = write_entity_tag(7, b"the answer")


def test_a_tag_tells_answers_of_one_version_apart() -> None:
    assert TAG.startswith(b'"7-')
    assert write_entity_tag(7, b"the answer") == TAG
    assert len({TAG, write_entity_tag(7, b"another"), write_entity_tag(8, b"the answer")}) == 3


@pytest.mark.parametrize(
    ("values", "is_known"),
    [
        ([], False),
        ([TAG], True),
        ([b" " + TAG + b"\t"], True),
        ([b"W/" + TAG], True),
        ([b"*"], True),
        ([b'"other", ' + TAG], True),
        ([b'"a,b",W/' + TAG + b', "c"'], True),
        ([b'"other"', TAG], True),
        ([b'"7"'], False),
        ([b'"other", W/"more"'], False),
        ([b'"*"'], False),
        ([TAG.strip(b'"')], False),
        ([b""], False),
        ([b'"'], False),
    ],
)
def test_what_a_client_has_already(values: list[bytes], is_known: bool) -> None:
    """A list, a weak tag and `*` count; what is no tag matches nothing (RFC 9110, section 13.1.2)."""
    headers = [(b"if-none-match", value) for value in values]
    assert is_known_to_client(headers, TAG) == is_known


@given(st.binary(max_size=60))
def test_any_header_is_compared(value: bytes) -> None:
    if is_known_to_client([(b"if-none-match", value)], TAG):
        assert value.strip() == b"*" or TAG in value


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (b'"7"', 7),
        (b'W/"7"', 7),
        (b' "-3" ', -3),
        (TAG, 7),
        (b"W/" + TAG, 7),
        (b'"-3-0123456789abcdef"', -3),
        (b"*", None),
        (None, None),
    ],
)
def test_a_change_expects_a_version(value: bytes | None, version: int | None) -> None:
    headers = [] if value is None else [(b"if-match", value)]
    assert parse_expected_version(headers) == version


@pytest.mark.parametrize(
    "value", [b"7", b'"x"', b'"7", "8"', b'""', b'"' + b"9" * 30 + b'"', b'"7-x"', b'"7-"']
)
def test_another_tag_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_expected_version([(b"if-match", value)])
    assert caught.value.param == "if-match"
