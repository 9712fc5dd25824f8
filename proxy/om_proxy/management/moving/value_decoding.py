"""Read the values of an export back: what `memory_export.encode_value` wrote, by the type that the
model gives each field."""

from __future__ import annotations

import base64
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, ValidationError, convert

from om_proxy.common.errors import UsageError
from om_proxy.memory.value_bounds import WITHOUT_SURROGATES

Record = Mapping[str, Any]
MAX_STORED_NUMBER = 2**63
# clocks of two machines may be some hours apart; a time further ahead would never pass
MAX_SECONDS_AHEAD = 86_400.0
WHAT_TO_REPAIR = (
    "run `om-proxy store verify --repair` on the store that it comes from, and export it again"
)


class ValueDecoder:
    """Decodes records, and notes the fields that this release does not know. `now`: unix seconds
    that no time of what has happened may be far ahead of."""

    def __init__(self, now: float = math.inf) -> None:
        self.unknown_fields: set[str] = set()
        self._latest = now + MAX_SECONDS_AHEAD

    def build(
        self,
        as_type: Any,
        record: Any,
        place: str,
        also: frozenset[str] = frozenset(),
        **more: Any,
    ) -> Any:
        """Build a struct or a named tuple from the fields of a record. A field that is missing has
        its default; `more` are values that the record does not hold, `also` fields that belong to
        something else. Raise UsageError for a value of another kind."""
        if not isinstance(record, Mapping):
            _refuse(place, "an object")
        hints = find_field_types(as_type)
        self.unknown_fields.update(
            f"{place}.{name}" for name in record if name not in hints and name not in also
        )
        fields = {
            name: self.decode(record[name], hints[name], f"{place}.{name}")
            for name in hints
            if name in record and name not in more
        }
        try:
            return as_type(**fields, **more)
        except TypeError as exc:  # a field without a default is missing
            raise UsageError(f"{place}: {exc}") from exc

    def decode(self, value: Any, as_type: Any, place: str) -> Any:  # noqa: PLR0911 - one a kind
        """Return the value as the model has it."""
        origin, args = get_origin(as_type), get_args(as_type)
        if origin is Annotated:
            return self._decode_bounded(value, as_type, place)
        if origin in (Union, types.UnionType):
            [inner] = [arg for arg in args if arg is not type(None)]
            return None if value is None else self.decode(value, inner, place)
        if origin is Literal:
            return value if value in args else _refuse(place, f"one of {', '.join(args)}")
        if as_type in (bytes, str):
            return decode_text(value, as_type, place)
        if origin is tuple:
            return self._decode_tuple(value, args, place)
        if issubclass(as_type, Struct | tuple):
            return self.build(as_type, value, place)
        return _decode_number(value, as_type, place)

    def _decode_bounded(self, value: Any, as_type: Any, place: str) -> Any:
        """Return a value within the bounds that its type has in `memory.value_bounds`."""
        base, bounds = get_args(as_type)
        decoded = self.decode(value, base, place)
        extra = bounds.extra or {}
        try:
            convert(decoded, as_type)
        except ValidationError:
            _refuse(place, f"{_describe_bounds(bounds)}; {WHAT_TO_REPAIR}")
        if decoded > extra.get("max_imported", decoded):
            _refuse(place, f"a number from 0 to {extra['max_imported']:g}")
        if extra.get("is_past") and decoded > self._latest:
            _refuse(place, "a time that has been, by this store's clock; correct that clock or it")
        return decoded

    def _decode_tuple(self, value: Any, args: tuple[Any, ...], place: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            _refuse(place, "a list")
        if args[-1] is Ellipsis:
            return tuple(self.decode(one, args[0], place) for one in value)
        if len(value) != len(args):
            _refuse(place, f"a list of {len(args)}")
        return tuple(self.decode(one, arg, place) for one, arg in zip(value, args, strict=True))


@cache
def find_field_types(as_type: Any) -> dict[str, Any]:
    """Return the types of the fields of a struct or a named tuple, by name."""
    hints = get_type_hints(as_type, include_extras=True)
    names = getattr(as_type, "__struct_fields__", None) or as_type._fields
    return {name: hints[name] for name in names}


def _describe_bounds(bounds: Meta) -> str:
    if bounds.le is not None:
        return f"a number from {bounds.ge:g} to {bounds.le:g}"
    if bounds.min_length is not None:
        return f"a value of {bounds.min_length} to {bounds.max_length} bytes"
    unwanted = "half characters" if bounds.pattern == WITHOUT_SURROGATES else "control characters"
    return f"a text without {unwanted}, of at most {bounds.max_length} characters"


def decode_text(value: Any, as_type: type, place: str) -> str | bytes:
    """Return text or bytes that are a JSON string or `{"base64": …}`."""
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            data = base64.b64decode(value["base64"], validate=True)
        except ValueError:  # binascii.Error too
            _refuse(place, "valid base64")
    else:
        _refuse(place, "a text")
    try:
        return data if as_type is bytes else data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        _refuse(place, "a text in UTF-8")


def _decode_number(value: Any, as_type: type, place: str) -> Any:
    """Return a bool, an int or a float. A float may be written as an integer."""
    kinds: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}
    if not isinstance(value, kinds[as_type]) or (as_type is not bool and isinstance(value, bool)):
        _refuse(place, f"a {as_type.__name__}")
    if isinstance(value, int) and abs(value) >= MAX_STORED_NUMBER:
        _refuse(place, "a number of 64 bits")
    number: object = as_type(value)
    return number


def _refuse(place: str, expected: str) -> NoReturn:
    raise UsageError(f"{place} is not {expected}")
