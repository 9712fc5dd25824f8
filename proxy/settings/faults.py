"""What is wrong with a setting, in one sentence that names key, value, rule and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from proxy.settings.memory import ContextSettings, MemorySettings
from proxy.settings.source import Document, Key, written

SECRETS = {"admin_token", "api_key", "key", "encryption_key", "token_secret"}

UNKNOWN = "is no setting"
HIDDEN = "(hidden)"
_SECTION, _LIST = "must be a mapping of keys", "must be a list"

_LOOKS_SECRET = re.compile(r"key|token(?!s)|secret|passw|credential|header|auth|cookie", re.IGNORECASE)
_QUANTITY = re.compile(
    r"[-+]?[\d_]*\.?\d+ ?[A-Za-z]{0,3}"
)  # with its unit; `message_tokens` and its like name no secret
_OF_A_URL = re.compile("[@?#]")  # behind or before which it may hold a credential
_RULES = {  # the start of pydantic's error type → our sentence; the first that fits
    "missing": "is required",
    "int_": "must be a whole number",
    "float_": "must be a number",
    "finite_number": "must be a number",
    "bool_": "must be true or false",
    "string_too_short": "must not be empty",
    "string_pattern": "must match {pattern}",
    "string_": "must be text",
    "tuple_": _LIST,
    "list_": _LIST,
    "too_short": "must not be empty",
    "model_": _SECTION,
    "dict_": _SECTION,
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be {ge:g} or more",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be {le:g} or less",
    "value_error": "{error}",
}


def faults(exc: ValidationError) -> Iterator[tuple[Key, str]]:
    """Each broken rule with the path of the key that breaks it."""
    errors = exc.errors(include_url=False)
    for error in errors:
        path, kind, context = error["loc"], error["type"], error.get("ctx", {})
        if kind == "too_short" and any(len(e["loc"]) > len(path) and e["loc"][: len(path)] == path for e in errors):
            continue  # pydantic counts the sound entries only: the list is short because of the faults told beside this
        if kind == "om_rules":
            yield from (((*path, *path_of(key)), rule) for key, rule in context["broken"])
        elif kind == "extra_forbidden":
            yield path, UNKNOWN
        else:
            rules = (rule.format(**context) for start, rule in _RULES.items() if kind.startswith(start))
            yield path, next(rules, error["msg"])


def path_of(key: str) -> Key:
    """`upstream.0.name` as a path."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def sentence(document: Document, settings: type[BaseModel], path: Key, rule: str) -> str:
    """`file:line: key = value: rule`; for an unknown key, without its value, the known one that is nearest.

    What may be a credential is not repeated: sentences go to a terminal, and into the log of a server that reloads its settings.
    """
    where, shown = document.origin(path), ""
    if rule == UNKNOWN:  # a secret's misspelt name is as likely as any
        near = _nearest(str(path[-1]), _known(settings, path[:-1]))
        rule = f"{UNKNOWN}; did you mean {near}?" if near else rule
        path = path if near or not _may_be_key(path) else (*path[:-1], HIDDEN)
    else:
        shown = _shown(document, path, rule)
    return f"{f'{where}: ' if where else ''}{written(path)}{shown}: {rule}"


def _nearest(key: str, known: list[str]) -> str | None:
    import difflib  # noqa: PLC0415 - 6 ms of every start, for where something is wrong only

    return next(iter(difflib.get_close_matches(key, known, n=1)), None)


def _known(settings: type[BaseModel], path: Key) -> list[str]:
    """The keys the section at this path may have."""
    model, rest = settings, path
    if path[:1] in {("models",), ("resources",)}:
        inner = path[3:] if path[2:3] in {("memory",), ("context",)} else path[2:]
        if not inner:
            return [*MemorySettings.model_fields, *ContextSettings.model_fields]
        model, rest = MemorySettings, inner
    for part in rest:
        if isinstance(part, str):
            annotation: Any = model.model_fields[part].annotation
            model = getattr(annotation, "__args__", (annotation,))[0]  # Section, or tuple[Section, ...]
    return list(model.model_fields)


def _may_be_key(path: Key) -> bool:
    """Whether an unknown name may be a credential itself, as in `auth: {keys: [{sk-…: acme}]}`."""
    return path[0] == "auth" or _issued(str(path[-1]))


def _shown(document: Document, path: Key, rule: str) -> str:
    """` = value`, where there is one."""
    value: Any = document.data
    for part in path:
        if isinstance(value, dict) and str(part) in value:
            value = value[str(part)]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return ""
    if isinstance(value, str) and (path in document.hidden or _may_be_secret(path, value, rule)):
        return f" = {HIDDEN}"
    return f" = {_short(value)}"


def _may_be_secret(path: Key, value: str, rule: str) -> bool:
    """By where it stands, what stands there instead of a section or list, what it is, or what the setting is called."""
    names = [part for part in path if isinstance(part, str)]
    if names[:1] == ["auth"] or SECRETS.intersection(names) or rule.startswith((_SECTION, _LIST)):
        return True
    if _OF_A_URL.search(value) or _issued(value):
        return True
    return any(map(_LOOKS_SECRET.search, names)) and not _QUANTITY.fullmatch(value)


def _issued(text: str) -> bool:
    """Whether it has a credential's shape."""
    from proxy.memory.redaction import redacted  # noqa: PLC0415 - as above

    return redacted(text) != text


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    if not isinstance(value, str):
        return {True: "true", False: "false", None: "null"}.get(value, str(value))
    return value if len(value) <= 60 else f"{value[:57]}…"
