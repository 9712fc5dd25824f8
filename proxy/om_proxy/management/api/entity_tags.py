"""Write and compare entity tags (RFC 9110, section 8.8.3).

A tag holds the version of the thread, which a change compares, and a digest of the answer. The same
version has other answers after a change of the settings, and to callers who may read no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from xxhash import xxh3_64_hexdigest

from om_proxy.common.errors import BadRequest
from om_proxy.wire.server.headers import Header, find_header

_TAG_PATTERN = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_VERSION_PATTERN = re.compile(rb'(?:W/)?"(-?[0-9]{1,18})(?:-[0-9a-f]{1,32})?"')


def write_entity_tag(version: int, content: bytes) -> bytes:
    """Return the tag of an answer with this content."""
    return b'"%d-%s"' % (version, xxh3_64_hexdigest(content).encode())


def is_known_to_client(headers: Sequence[Header], tag: bytes) -> bool:
    """Return whether `If-None-Match` names the tag: as the only one, in a list, or with `*`. Weak
    tags count, because servers in between make tags weak (RFC 9110, section 13.1.2)."""
    return any(known in (b"*", tag) for known in _iterate_known_tags(headers))


def _iterate_known_tags(headers: Sequence[Header]) -> Iterator[bytes]:
    for name, value in headers:
        if name == b"if-none-match":
            yield value.strip()  # `*`
            yield from _TAG_PATTERN.findall(value)


def parse_expected_version(headers: Sequence[Header]) -> int | None:
    """Return the version that `If-Match` names; None without the header, or for `*`. The digest does
    not count: a change of the settings is no change of the thread. Raise BadRequest for another
    tag."""
    value = find_header(headers, b"if-match")
    if value is None or value.strip() == b"*":
        return None
    number = _VERSION_PATTERN.fullmatch(value.strip())
    if number is None:
        raise BadRequest(
            "send the ETag of an earlier answer, with its quotes; one alone", param="if-match"
        )
    return int(number[1])
