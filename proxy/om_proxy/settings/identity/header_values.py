"""Read the values of request headers that name a thread, a resource or a choice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar
from zoneinfo import ZoneInfo

from om_proxy.common.errors import BadRequest
from om_proxy.settings.identity.naming import MAX_NAME_BYTES, PLAIN_CHARACTERS, decode_name

Headers = Iterable[tuple[bytes, bytes]]  # names in lower case, as ASGI gives them
ValuesByName = Mapping[str, list[str]]

# RFC 9110 5.6.3; without an argument, `strip` would also remove U+0085 and U+00A0
HTTP_WHITESPACE = " \t"
_TIMEZONE_NAME = re.compile(r"[\w+-]{1,32}(?:/[\w+-]{1,32}){0,2}", re.ASCII)
_Choice = TypeVar("_Choice", bound=str)


def group_by_name(headers: Headers) -> dict[str, list[str]]:
    """Return the values of each header, in the order in which they were sent."""
    values_by_name: dict[str, list[str]] = {}
    for name, value in headers:
        values_by_name.setdefault(name.decode("latin-1").lower(), []).append(
            value.decode("latin-1")
        )
    return values_by_name


def read_value(value: str) -> str:
    """Return the value without white space around it. A template that was not filled in (`{{…}}`)
    is empty."""
    value = value.strip(HTTP_WHITESPACE)
    # `find`, because a regular expression would search for the end again at every brace
    start = value.find("{{")
    is_unfilled = start >= 0 and value.find("}}", start + 2) >= 0
    return "" if is_unfilled else value


def read_single_value(values_by_name: ValuesByName, name: str) -> str:
    """Return the value of a header that may be sent once; "" if the header is absent. Raises
    BadRequest if it was sent several times."""
    values = values_by_name.get(name, [])
    if len(values) > 1:
        raise BadRequest(
            f"header {name} was sent {len(values)} times; send it once", "om_bad_header", name
        )
    return read_value(values[0]) if values else ""


def read_first_name(values_by_name: ValuesByName, headers: Sequence[str]) -> str | None:
    """Return the first usable name, in the order of the headers. All headers that are present are
    checked: the proxy never ignores an invalid one, but raises BadRequest."""
    first_name = None
    for header in headers:
        value = read_single_value(values_by_name, header)
        if not value:
            continue
        name = decode_name(value)
        if name is None:
            raise BadRequest(
                f"header {header} must be 1 to {MAX_NAME_BYTES} of the characters"
                f" {PLAIN_CHARACTERS}; percent-encode others, as UTF-8",
                "om_bad_header",
                header,
            )
        first_name = first_name or read_value(name)
    return first_name or None


def read_choice(
    values_by_name: ValuesByName, name: str, choices: Sequence[_Choice]
) -> _Choice | None:
    """Return the chosen word; None if the header is absent. Raises BadRequest for any other
    word."""
    values = [value.strip(HTTP_WHITESPACE).lower() for value in values_by_name.get(name, [])]
    if not any(values):
        return None
    word = next((choice for choice in choices if choice == values[0]), None)
    if word is None or len(values) > 1:
        raise BadRequest(
            f"header {name} must be one of: {', '.join(choices)}", "om_bad_header", name
        )
    return word


def read_timezone(values_by_name: ValuesByName, header: str) -> str | None:
    """Return the IANA name of a time zone; None if the header is absent. Raises BadRequest for an
    unknown time zone."""
    name = read_value(",".join(values_by_name.get(header, [])))
    if not name:
        return None
    try:
        # ZoneInfo imports each segment as a package, so the name's form is checked first
        return ZoneInfo(name if _TIMEZONE_NAME.fullmatch(name) else "").key
    except (OSError, ValueError, KeyError) as exc:
        raise BadRequest(
            f"header {header} must be an IANA time zone, as in Europe/Berlin",
            "om_bad_header",
            header,
        ) from exc
