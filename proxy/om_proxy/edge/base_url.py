"""Take a thread's name from the client's base URL, for clients that can set nothing else:
`/t/<thread>/v1` and `/r/<resource>/t/<thread>/v1`.

The names are removed from the path before the request is routed, and added to its headers under two
header names that no client can send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starlette.types import Scope

from om_proxy.common.errors import BadRequest
from om_proxy.settings.identity.identity_rules import PATH_RESOURCE, PATH_THREAD
from om_proxy.settings.identity.naming import MAX_NAME_BYTES, decode_path_segment, encode_name

_BAD_NAME_MESSAGE = (
    f"a thread or resource in the path must be 1 to {MAX_NAME_BYTES} bytes of printable UTF-8, "
    "percent-encoded, and not `.` or `..`"
)


class BaseUrl(NamedTuple):
    """The names in a path, each encoded as in a header, and the rest of the path."""

    thread: str
    resource: str | None
    path: bytes


def take_names_from_path(scope: Scope) -> Scope:
    """Move the path's names into headers, as if the client had sent them. Raise BadRequest for a
    prefix that names no thread."""
    raw_path: bytes = scope["raw_path"]
    if not raw_path.startswith((b"/t/", b"/r/")):
        return scope
    base_url = split_path(raw_path)
    headers = [*scope["headers"], (PATH_THREAD.encode(), base_url.thread.encode())]
    if base_url.resource is not None:
        headers.append((PATH_RESOURCE.encode(), base_url.resource.encode()))
    return {
        **scope,
        "headers": headers,
        "raw_path": base_url.path,
        "path": base_url.path.decode("latin-1"),
    }


def has_path_thread(scope: Scope) -> bool:
    """Return whether the request's path named a thread."""
    return any(name == PATH_THREAD.encode() for name, _ in scope["headers"])


def split_path(raw_path: bytes) -> BaseUrl:
    """Split a path with a prefix. Raise BadRequest for a path that only begins like one."""
    match raw_path.decode("latin-1").split("/"):
        case ["", "t", thread, *api_segments]:
            resource = None
        case ["", "r", resource_segment, "t", thread, *api_segments]:
            resource = _encode_segment(resource_segment)
        case _:
            raise BadRequest(
                "the path names a resource and no thread; "
                "use /r/<resource>/t/<thread>/v1 as the base URL",
                "om_bad_path",
            )
    _check_no_second_prefix(api_segments)
    api_path = "/".join(["", *(api_segments or [""])])
    return BaseUrl(_encode_segment(thread), resource, api_path.encode("latin-1"))


def _check_no_second_prefix(api_segments: Sequence[str]) -> None:
    if api_segments[:1] in (["t"], ["r"]):
        raise BadRequest(
            "the path names two threads or resources; name one in the base URL", "om_bad_path"
        )


def _encode_segment(segment: str) -> str:
    name = decode_path_segment(segment)
    if not name or name in (".", ".."):
        raise BadRequest(_BAD_NAME_MESSAGE, "om_bad_path")
    return encode_name(name)
