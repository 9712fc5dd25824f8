"""Write and read the cursors of lists. A cursor names the list that gave it by a hash, so that
another list refuses it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from om_proxy.common.errors import BadRequest

# in the hash: a release that orders its lists otherwise refuses the cursors of an earlier one
CURSOR_RELEASE = 1
LIST_HASH_BYTES = 8

_Place = TypeVar("_Place")


def write_cursor(listed: Sequence[Any], place: Any) -> str:
    """Return the cursor of a place in a list. `listed`: the name of the list, its tenant, and all
    else that says what it holds and in which order."""
    content = msgspec.json.encode((_hash_list(listed), place))
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def parse_cursor(
    cursor: str | None, listed: Sequence[Any], place_type: type[_Place]
) -> _Place | None:
    """Return the place; None without a cursor. Raise BadRequest unless this list gave it."""
    if not cursor:
        return None
    try:
        padding = "=" * (-len(cursor) % 4)
        content = base64.b64decode(cursor + padding, altchars=b"-_", validate=True)
        list_hash, place = msgspec.json.decode(content, type=tuple[str, msgspec.Raw])
        if list_hash == _hash_list(listed):
            return msgspec.json.decode(place, type=place_type)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        pass  # the refusal below says it
    raise BadRequest("cursor is not one that this list gave", param="cursor")


def _hash_list(listed: Sequence[Any]) -> str:
    content = msgspec.json.encode((CURSOR_RELEASE, *listed))
    return hashlib.blake2b(content, digest_size=LIST_HASH_BYTES).hexdigest()
