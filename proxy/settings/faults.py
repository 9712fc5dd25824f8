"""What is wrong with a setting, in one sentence that names key, value, rule and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from proxy.settings.memory import ContextSettings, MemorySettings
from proxy.settings.source import Document, Key, written

SECRETS = {"admin_token", "api_key", "key", "encryption_key", "token_secret"}

_LOOKS_SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[\d_]*\.?\d+")
_RULES = {  # the start of pydantic's error type → our sentence; the first that fits
    "missing": "is required",
    "int_": "must be a whole number",
    "float_": "must be a number",
    "finite_number": "must be a number",
    "bool_": "must be true or false",
    "string_too_short": "must not be empty",
    "string_pattern": "must match {pattern}",
    "string_": "must be text",
    "tuple_": "must be a list",
    "list_": "must be a list",
    "too_short": "must not be empty",
    "model_": "must be a mapping of keys",
    "dict_": "must be a mapping of keys",
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
            yield path, "is no setting"
        else:
            rules = (rule.format(**context) for start, rule in _RULES.items() if kind.startswith(start))
            yield path, next(rules, error["msg"])


def path_of(key: str) -> Key:
    """`upstream.0.name` as a path."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def sentence(document: Document, settings: type[BaseModel], path: Key, rule: str) -> str:
    """`file:line: key = value: rule`; for an unknown key with the known one that is nearest."""
    if rule == "is no setting" and (near := _nearest(str(path[-1]), _known(settings, path[:-1]))):
        rule = f"is no setting; did you mean {near}?"
    where = document.origin(path)
    return f"{f'{where}: ' if where else ''}{written(path)}{_shown(document, path)}: {rule}"


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


def _shown(document: Document, path: Key) -> str:
    """` = value`, where there is one."""
    value: Any = document.data
    for part in path:
        if isinstance(value, dict) and str(part) in value:
            value = value[str(part)]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return ""
    return f" = {_harmless(value, secret=path in document.hidden or path[-1] in SECRETS, key=str(path[-1]))}"


def _harmless(value: Any, *, secret: bool, key: str) -> str:
    """A value that may be a credential is not repeated: an unknown `apikey` is one more likely than not."""
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    if not isinstance(value, str):
        return {True: "true", False: "false", None: "null"}.get(value, str(value))
    number = _NUMBER.fullmatch(value) is not None
    if secret or "@" in value or (_LOOKS_SECRET.search(key) and len(value) > 8 and not number):
        return "(hidden)"
    return value if len(value) <= 60 else f"{value[:57]}…"
