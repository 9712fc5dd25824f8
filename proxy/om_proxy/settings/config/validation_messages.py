"""Render what is wrong with a setting, in one sentence with its line, key, value and rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from om_proxy.settings.config.sections.memory import ContextSettings, MemorySettings
from om_proxy.settings.config.sections.quantities import SWITCH_WORDS
from om_proxy.settings.config.sections.service import ResourceRetention
from om_proxy.settings.config.source import Document, Key, render_path

SECRET_SETTINGS = {
    "admin_token",
    "api_key",
    "key",
    "encryption_key",
    "token_secret",
    "metrics_token",
    "secret",
}

LISTS_OF_SECTIONS = {"upstream", "keys", "webhooks"}  # all other lists hold texts
UNKNOWN_SETTING_RULE = "is not a setting"
HIDDEN_VALUE = "(hidden)"
MAX_SHOWN_CHARS = 60  # of a value
_SECTION_RULE = "must be a mapping of keys"
_LIST_RULE = "must be a list"

_SECRET_NAME_PATTERN = re.compile(
    r"key|token(?!s)|secret|passw|credential|header|auth|cookie", re.IGNORECASE
)
# a number with its unit: the value of a setting like `message_tokens` is no secret
_QUANTITY_PATTERN = re.compile(r"[-+]?[\d_]*\.?\d+ ?[A-Za-z]{0,3}")
# a URL may hold a secret before `@`, or after `?` and `#`
_URL_SECRET_PATTERN = re.compile("[@?#]")
# the start of pydantic's error type, and our rule; the first match counts
_RULES_BY_ERROR_TYPE = {
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
    """List each broken rule with the path of the setting that breaks the rule."""
    errors = exc.errors(include_url=False)
    for error in errors:
        path = error["loc"]
        kind = error["type"]
        context = error.get("ctx", {})
        has_faulty_item = any(
            len(other["loc"]) > len(path) and other["loc"][: len(path)] == path for other in errors
        )
        if kind == "too_short" and has_faulty_item:
            # pydantic counts only valid items; the faults of the others are listed on their own
            continue
        if kind == "om_rules":
            yield from (((*path, *parse_path(key)), rule) for key, rule in context["faults"])
        elif kind == "extra_forbidden":
            yield path, UNKNOWN_SETTING_RULE
        else:
            rules = (
                rule.format(**context)
                for start, rule in _RULES_BY_ERROR_TYPE.items()
                if kind.startswith(start)
            )
            yield path, next(rules, error["msg"])


def render_faults(exc: ValidationError) -> str:
    """Render all broken rules in one sentence, each after the path of its setting."""
    return "; ".join(f"{'.'.join(map(str, path))} {rule}" for path, rule in list_faults(exc))


def parse_path(key: str) -> Key:
    """Parse `upstream.0.name` as a path."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def render_fault(document: Document, settings: type[BaseModel], path: Key, rule: str) -> str:
    """Render `file:line: key = value: rule`. For an unknown key, render the most similar known
    keys, and not the value.

    A value that may be a credential is not repeated: the text goes to a terminal, and into the log
    of a server that reloads its settings.
    """
    origin = document.origin(path)
    value = ""
    if rule == UNKNOWN_SETTING_RULE:  # the value is not shown: the key may be a misspelt secret's
        if similar_keys := _find_similar_keys(settings, path):
            rule = f"{rule}; did you mean {similar_keys}?"
        else:
            rule = f"{rule}; there are {', '.join(_get_known_keys(settings, path[:-1]))}"
            path = (*path[:-1], HIDDEN_VALUE) if _can_be_credential(path) else path
    else:
        value = _render_value(document, path, rule)
        if rule == _LIST_RULE:
            rule = f"{rule}: write it as {_render_list_form(path)}"
        elif rule == _SECTION_RULE:
            rule = f"{rule}: write it as {_render_section_form(settings, path)}"
    place = f"{origin}: " if origin else ""
    return f"{place}{render_path(path)}{value}: {rule}"


def _find_similar_keys(settings: type[BaseModel], path: Key) -> str:
    """Find the keys that may have been meant by an unknown key, joined by "or"; "" without any."""
    key = str(path[-1])
    if len(path) == 1 and (setting := find_setting(settings, key)):  # `server_port`
        return ".".join(setting)
    types_by_key = _get_known_keys(settings, path[:-1])
    return _find_in_sections(key, types_by_key) or _find_close_matches(key, list(types_by_key))


def _find_close_matches(key: str, known_keys: list[str]) -> str:
    import difflib  # noqa: PLC0415 - 6 ms, needed for a fault only

    return " or ".join(difflib.get_close_matches(key, known_keys, n=2))


def _find_in_sections(key: str, types_by_key: Mapping[str, Any]) -> str:
    """Find the sections beside an unknown key that have a key of its name, as in
    `observation.message_tokens`. Several are joined by "or"."""
    return " or ".join(
        f"{name}.{key}"
        for name, field_type in types_by_key.items()
        if isinstance(field_type, type)
        and issubclass(field_type, BaseModel)
        and key in field_type.model_fields
    )


def _render_list_form(path: Key) -> str:
    """Render the form of a list without its values, which may be secret."""
    return "[{…}]" if path[-1] in LISTS_OF_SECTIONS else '["…"]'


def _render_section_form(settings: type[BaseModel], path: Key) -> str:
    """Render a section with the key that a word was meant for, or with the first of its keys."""
    if path in {("models",), ("resources",)}:
        return '{"…": {…}}'
    keys = [*_get_known_keys(settings, path)]
    if not keys:  # of any names
        return '{"…": …}'
    return "{enabled: …}" if "enabled" in keys else f"{{{keys[0]}: …, …}}"


def find_setting(section: type[BaseModel], words: str) -> tuple[str, ...]:
    """Return the path of the setting whose keys, joined by underscores, are these words; () without
    one."""
    if words in section.model_fields:
        return (words,)
    for name, field in section.model_fields.items():
        inner, index = _get_section(field.annotation)
        rest = words.removeprefix(f"{name}_")
        if inner is not None and rest != words and (found := find_setting(inner, rest)):
            return (name, *index, *found)
    return ()


def _get_section(annotation: Any) -> tuple[type[BaseModel] | None, tuple[str, ...]]:
    """Return the section of a field, and the index of its first item if it is a list of them."""
    index: tuple[str, ...] = ()
    if items := getattr(annotation, "__args__", ()):
        annotation, index = items[0], ("0",)
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return (annotation if is_section else None), index


def _get_known_keys(settings: type[BaseModel], path: Key) -> dict[str, Any]:
    """Return the keys that the section at this path may have, each with its type."""
    model: type[BaseModel] = settings
    if path[:1] == ("resources",) and path[2:3] == ("retention",):
        model, path = ResourceRetention, path[2:]
    elif path[:1] in {("models",), ("resources",)}:
        model = MemorySettings
        path = path[3:] if path[2:3] in {("memory",), ("context",)} else path[2:]
        if not path:
            return _get_field_types(MemorySettings) | _get_field_types(ContextSettings)
    for part in path:
        if isinstance(part, str):
            annotation = _get_field_types(model)[part]
            # Section, or tuple[Section, ...]
            model = getattr(annotation, "__args__", (annotation,))[0]
    return _get_field_types(model)


def _get_field_types(model: type[BaseModel]) -> dict[str, Any]:
    fields = model.model_fields if issubclass(model, BaseModel) else {}
    return {name: field.annotation for name, field in fields.items()}


def _can_be_credential(path: Key) -> bool:
    """Return whether an unknown key may be a credential itself, as in `auth: {keys: [{sk-…:
    acme}]}`."""
    return path[0] == "auth" or has_credential_shape(str(path[-1]))


def _render_value(document: Document, path: Key, rule: str) -> str:
    """Render ` = value`; "" if the document has no value at this path."""
    value = document.get_value(path, default=...)
    if value is ...:
        return ""
    if isinstance(value, str) and (path in document.hidden or _can_be_secret(path, value, rule)):
        return f" = {HIDDEN_VALUE}"
    return f" = {_shorten_value(value)}"


def _can_be_secret(path: Key, value: str, rule: str) -> bool:
    """Return whether a value may be a secret, because of its section, because it replaces a section
    or a list, because of its form, or because of the setting's name. A word such as `on` is none."""
    if value.lower() in SWITCH_WORDS:
        return False
    names = [part for part in path if isinstance(part, str)]
    if names[:1] == ["auth"] or SECRET_SETTINGS.intersection(names):
        return True
    if rule.startswith((_SECTION_RULE, _LIST_RULE)):
        return True
    if _URL_SECRET_PATTERN.search(value) or has_credential_shape(value):
        return True
    has_secret_name = any(map(_SECRET_NAME_PATTERN.search, names))
    return has_secret_name and not _QUANTITY_PATTERN.fullmatch(value)


def has_credential_shape(text: str) -> bool:
    """Return whether the text contains something with the form of a credential."""
    return redact_credentials(text) != text


def redact_credentials(text: str) -> str:
    """Remove every part with the form of a credential. Settings are shown on terminals, and in the
    log at each start."""
    from om_proxy.memory.notes.redaction import redact_secrets  # noqa: PLC0415 - slow to import

    return redact_secrets(text)


def _shorten_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    if not isinstance(value, str):
        return {True: "true", False: "false", None: "null"}.get(value, str(value))
    return value if len(value) <= MAX_SHOWN_CHARS else f"{value[: MAX_SHOWN_CHARS - 3]}…"
