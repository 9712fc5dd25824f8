"""The members that a schema documents and those that bodies send, as sets of paths like
`messages[user].content[text].text`.

A role or a type in brackets tells alternatives apart. `path=value` is one of a fixed set of values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def documented(schema: Mapping[str, Any]) -> set[str]:
    return _documented(schema, "", schema.get("$defs", {}))


def _documented(schema: Mapping[str, Any], at: str, defs: Mapping[str, Any]) -> set[str]:
    if "$ref" in schema:
        return _documented(defs[schema["$ref"].rpartition("/")[2]], at, defs)
    found = {
        f"{at}={value}"
        for value in schema.get("enum", [schema.get("const")])
        if isinstance(value, str)
    }
    for option in _options(schema):
        found |= _documented(option, at, defs)
    properties: dict[str, Any] = schema.get("properties", {})
    labelled = at + _label({name: member.get("const") for name, member in properties.items()})
    for name, member in properties.items():
        path = f"{labelled}.{name}".lstrip(".")
        found |= {path} | _documented(member, path, defs)
    return found


def _options(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a value may be. Where any text will do, the texts that are named besides are
    examples."""
    options = [
        *schema.get("anyOf", ()),
        *schema.get("oneOf", ()),
        *([schema["items"]] if "items" in schema else []),
    ]
    free = any(
        option.get("type") == "string" and not {"enum", "const"} & set(option) for option in options
    )
    return [option for option in options if not (free and "enum" in option)]


def sent(value: Any, at: str = "") -> set[str]:
    """Of one body: every path in it, those of members that nobody documents too."""
    if isinstance(value, list):
        return set().union(*(sent(item, at) for item in value))
    if not isinstance(value, dict):
        return {f"{at}={value}"} if isinstance(value, str) else set()
    labelled, found = at + _label(value), set[str]()
    for name, member in value.items():
        path = f"{labelled}.{name}".lstrip(".")
        found |= {path} | sent(member, path)
    return found


def _label(members: Mapping[str, Any]) -> str:
    label = members.get("role") or members.get("type")
    return f"[{label}]" if isinstance(label, str) else ""
