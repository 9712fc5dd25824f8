"""What is wrong with a setting, in one sentence that names key, value, rule and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from om_proxy.settings.memory import ContextSettings, MemorySettings
from om_proxy.settings.source import Document, Key, render_path

SECRET_SETTINGS = {"admin_token", "api_key", "key", "encryption_key", "token_secret"}

LISTS_OF_SECTIONS = {"upstream", "keys"}  # the lists that hold sections; the others hold texts
UNKNOWN_SETTING_RULE = "is not a setting"
HIDDEN_VALUE = "(hidden)"
_SECTION_RULE, _LIST_RULE = "must be a mapping of keys", "must be a list"

_SECRET_NAME_PATTERN = re.compile(
    r"key|token(?!s)|secret|passw|credential|header|auth|cookie", re.IGNORECASE
)
_QUANTITY_PATTERN = re.compile(
    r"[-+]?[\d_]*\.?\d+ ?[A-Za-z]{0,3}"
)  # with its unit; `message_tokens` and its like name no secret
_URL_SECRET_PATTERN = re.compile("[@?#]")  # behind or before which it may hold a credential
_RULES_BY_ERROR_TYPE = {  # the start of pydantic's error type → our sentence; the first that fits
    "missing": "is required",
    "int_": "must be a whole number",
    "float_": "must be a number",
    "finite_number": "must be a number",
    "bool_": "must be true or false",
    "string_too_short": "must not be empty",
    "string_pattern": "must match {pattern}",
    "string_": "must be text",
    "tuple_": _LIST_RULE,
    "list_": _LIST_RULE,
    "too_short": "must not be empty",
    "model_": _SECTION_RULE,
    "dict_": _SECTION_RULE,
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be {ge:g} or more",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be {le:g} or less",
    "value_error": "{error}",
}


def list_faults(exc: ValidationError) -> Iterator[tuple[Key, str]]:
    """Each broken rule with the path of the key that breaks it."""
    errors = exc.errors(include_url=False)
    for error in errors:
        path, kind, context = error["loc"], error["type"], error.get("ctx", {})
        if kind == "too_short" and any(
            len(e["loc"]) > len(path) and e["loc"][: len(path)] == path for e in errors
        ):
            # pydantic counts the sound entries only: the list is short because of the faults told
            # beside this
            continue
        if kind == "om_rules":
            yield from (((*path, *parse_path(key)), rule) for key, rule in context["broken"])
        elif kind == "extra_forbidden":
            yield path, UNKNOWN_SETTING_RULE
        else:
            rules = (
                rule.format(**context)
                for start, rule in _RULES_BY_ERROR_TYPE.items()
                if kind.startswith(start)
            )
            yield path, next(rules, error["msg"])


def parse_path(key: str) -> Key:
    """`upstream.0.name` as a path."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def render_fault(document: Document, settings: type[BaseModel], path: Key, rule: str) -> str:
    """`file:line: key = value: rule`; for an unknown key, without its value, the known one that is
    nearest.

    What may be a credential is not repeated: sentences go to a terminal, and into the log of a
    server that reloads its settings.
    """
    where, shown = document.origin(path), ""
    if rule == UNKNOWN_SETTING_RULE:  # a secret's misspelt name is as likely as any
        known = _get_known_keys(settings, path[:-1])
        near = _find_in_sections(str(path[-1]), known) or _find_similar_keys(
            str(path[-1]), list(known)
        )
        rule = f"{UNKNOWN_SETTING_RULE}; did you mean {near}?" if near else rule
        path = path if near or not _can_be_credential(path) else (*path[:-1], HIDDEN_VALUE)
    elif rule == _LIST_RULE:
        shown, rule = (
            _render_value(document, path, rule),
            f"{rule}: write it as {_render_list_form(path)}",
        )
    else:
        shown = _render_value(document, path, rule)
    return f"{f'{where}: ' if where else ''}{render_path(path)}{shown}: {rule}"


def _find_similar_keys(key: str, known: list[str]) -> str | None:
    import difflib  # noqa: PLC0415 - 6 ms of every start, for where something is wrong only

    return " or ".join(difflib.get_close_matches(key, known, n=2)) or None


def _find_in_sections(key: str, known: Mapping[str, Any]) -> str | None:
    """Where the key is one of a section beside it: `observation.message_tokens`. Each of them,
    where there are several."""
    sections = {
        name: kind
        for name, kind in known.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }
    return (
        " or ".join(f"{name}.{key}" for name, kind in sections.items() if key in kind.model_fields)
        or None
    )


def _render_list_form(path: Key) -> str:
    """How such a list is written, without what stands there: it may be secret."""
    return "[{…}]" if path[-1] in LISTS_OF_SECTIONS else '["…"]'


def _get_known_keys(settings: type[BaseModel], path: Key) -> dict[str, Any]:
    """The keys the section at this path may have, each with its type."""
    model, rest = settings, path
    if path[:1] in {("models",), ("resources",)}:
        inner = path[3:] if path[2:3] in {("memory",), ("context",)} else path[2:]
        if not inner:
            return _get_field_types(MemorySettings) | _get_field_types(ContextSettings)
        model, rest = MemorySettings, inner
    for part in rest:
        if isinstance(part, str):
            annotation = _get_field_types(model)[part]
            model = getattr(annotation, "__args__", (annotation,))[
                0
            ]  # Section, or tuple[Section, ...]
    return _get_field_types(model)


def _get_field_types(model: type[BaseModel]) -> dict[str, Any]:
    return {name: field.annotation for name, field in model.model_fields.items()}


def _can_be_credential(path: Key) -> bool:
    """Whether an unknown name may be a credential itself, as in `auth: {keys: [{sk-…: acme}]}`."""
    return path[0] == "auth" or has_credential_shape(str(path[-1]))


def _render_value(document: Document, path: Key, rule: str) -> str:
    """` = value`, where there is one."""
    value: Any = document.data
    for part in path:
        if isinstance(value, dict) and str(part) in value:
            value = value[str(part)]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return ""
    if isinstance(value, str) and (path in document.hidden or _can_be_secret(path, value, rule)):
        return f" = {HIDDEN_VALUE}"
    return f" = {_shorten_value(value)}"


def _can_be_secret(path: Key, value: str, rule: str) -> bool:
    """By where it stands, what stands there instead of a section or list, what it is, or what the
    setting is called."""
    names = [part for part in path if isinstance(part, str)]
    if (
        names[:1] == ["auth"]
        or SECRET_SETTINGS.intersection(names)
        or rule.startswith((_SECTION_RULE, _LIST_RULE))
    ):
        return True
    if _URL_SECRET_PATTERN.search(value) or has_credential_shape(value):
        return True
    return any(map(_SECRET_NAME_PATTERN.search, names)) and not _QUANTITY_PATTERN.fullmatch(value)


def has_credential_shape(text: str) -> bool:
    """Whether it has a credential's shape."""
    return redact_credentials(text) != text


def redact_credentials(text: str) -> str:
    """The text without what has a credential's shape: settings are shown on terminals, and at each
    start in a log."""
    from om_proxy.memory.notes.redaction import redact_secrets  # noqa: PLC0415 - as above

    return redact_secrets(text)


def _shorten_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    if not isinstance(value, str):
        return {True: "true", False: "false", None: "null"}.get(value, str(value))
    return value if len(value) <= 60 else f"{value[:57]}…"
