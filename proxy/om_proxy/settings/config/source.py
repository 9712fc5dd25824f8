"""Read the YAML file and the environment into plain data, with the origin of each key.

Types come from the settings, not from YAML's guesses: a number stays text until a setting asks for
a number, so that the key `0123` and the word `off` stay as they are written. Only null, true and
false are converted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from om_proxy.common.errors import ConfigError

OVERRIDE_PREFIX = "OM_PROXY__"
# the built-in upstreams, which variables may change
DEFAULT_UPSTREAMS: tuple[dict[str, Any], ...] = (
    {
        "name": "openai",
        "apis": ["chat", "responses"],
        "base_url": "https://api.openai.com/v1",
    },
    {"name": "anthropic", "apis": ["messages"], "base_url": "https://api.anthropic.com/v1"},
)

Key = tuple[str | int, ...]

_VARIABLE_PATTERN = re.compile(r"\$(\$)?\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|(\$\{)")
_BARE_VARIABLE_PATTERN = re.compile(r"\$[A-Z][A-Z0-9_]*")
_PLAIN_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
}
_PLAIN_WORDS |= {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}
_MERGE_TAG = "tag:yaml.org,2002:merge"
_TEXT_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class Document:
    """The configuration before it is checked. `origins` maps a path to its source, `file:line` or
    `env NAME`. `hidden` holds the paths whose value contains the value of a variable."""

    data: dict[str, Any]
    origins: dict[Key, str] = field(default_factory=dict)
    hidden: set[Key] = field(default_factory=set)

    def origin(self, path: Key) -> str | None:
        """Return the origin of the path. If it has none, return the origin of a key inside it (a
        variable makes sections without an origin of their own), or of its nearest parent."""
        for length in range(len(path), 0, -1):
            prefix = path[:length]
            if origin := self.origins.get(prefix) or self._find_origin_inside(prefix):
                return origin
        return None

    def get_value(self, path: Key, default: Any = None) -> Any:
        """Return the value at the path, or the default if there is none."""
        value: Any = self.data
        for part in path:
            if isinstance(value, dict) and str(part) in value:
                value = value[str(part)]
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return default
        return value

    def _find_origin_inside(self, path: Key) -> str | None:
        for other_path, origin in self.origins.items():
            if other_path[: len(path)] == path:
                return origin
        return None


def read_document(text: str, name: str, env: Mapping[str, str]) -> Document:
    """Read a file's text, fill in its variables and apply the environment's overrides. Raises one
    ConfigError for all faults."""
    reader = _Reader(name, env)
    root = reader.parse_root(text)
    data = reader.read_mapping(root, ()) if root is not None else {}
    document = Document(data, reader.origins, reader.hidden)
    _set_default_token(document, env)
    _set_default_upstreams(document, env)
    for variable in sorted(name for name in env if name.startswith(OVERRIDE_PREFIX)):
        try:
            _set_override(document, variable, env[variable])
        except ConfigError as exc:
            reader.faults.append(str(exc))
    if reader.faults:
        raise ConfigError("\n".join(reader.faults))
    return document


def _set_default_token(document: Document, env: Mapping[str, str]) -> None:
    """Use `${OM_PROXY_ADMIN_TOKEN:-}` as `server.admin_token` if the file does not set one."""
    if token := env.get("OM_PROXY_ADMIN_TOKEN"):
        server = document.data.setdefault("server", {})
        if isinstance(server, dict) and "admin_token" not in server:
            server["admin_token"] = token
            document.origins["server", "admin_token"] = "env OM_PROXY_ADMIN_TOKEN"


def _set_default_upstreams(document: Document, env: Mapping[str, str]) -> None:
    """Add the built-in upstreams if variables change them, and no file names others. One that gets
    another address is for all APIs, and the only one: its clients' keys must reach no other."""
    names = [name for name in env if name.startswith(f"{OVERRIDE_PREFIX}UPSTREAM__")]
    if not names or "upstream" in document.data:
        return
    upstreams = [dict(upstream) for upstream in DEFAULT_UPSTREAMS]
    if any(name.endswith("__BASE_URL") for name in names):
        upstreams = [{key: value for key, value in upstreams[0].items() if key != "apis"}]
    document.data["upstream"] = upstreams


def _set_override(document: Document, variable: str, text: str) -> None:
    """Set the key that one `OM_PROXY__SECTION__KEY` names. Its value is YAML. A number stays text,
    as in the file."""
    path: Key = tuple(
        int(part) if part.isdigit() else part.lower()
        for part in variable[len(OVERRIDE_PREFIX) :].split("__")
    )
    if "" in path:
        raise ConfigError(f"env {variable}: names no key; write {OVERRIDE_PREFIX}SECTION__KEY")
    value = _parse_value(text, variable)
    parent: Any = document.data
    for part in path[:-1]:
        parent = _open_container(parent, part)
    if isinstance(parent, dict):
        parent[str(path[-1])] = value
    elif isinstance(parent, list) and isinstance(path[-1], int) and path[-1] <= len(parent):
        parent[path[-1] : path[-1] + 1] = [value]
    else:
        raise ConfigError(
            f"env {variable}: {render_path(path)} cannot be set: its parent is neither a section nor a list"
        )
    _set_origin(document, path, f"env {variable}")


def _open_container(parent: Any, part: str | int) -> Any:
    """Return the section or list at `part` of `parent`; None if `parent` cannot hold one. A missing
    section is made, and `memory: true` becomes a section."""
    if isinstance(parent, list) and isinstance(part, int) and part <= len(parent):
        parent.extend([{}] if part == len(parent) else [])
        return parent[part]
    if not isinstance(parent, dict):
        return None
    child = parent.get(str(part))
    if child is None or isinstance(child, bool):
        parent[str(part)] = child = {} if child is None else {"enabled": child}
    return child


def _set_origin(document: Document, path: Key, origin: str) -> None:
    """Record the origin of a path, and delete the origins of all paths that it replaced."""
    for replaced in [other for other in document.origins if other[: len(path)] == path]:
        del document.origins[replaced]
    for replaced in [other for other in document.hidden if other[: len(path)] == path]:
        document.hidden.remove(replaced)
    _record_origin(document.origins, path, origin, document.get_value(path))


def _record_origin(origins: dict[Key, str], path: Key, origin: str, value: Any) -> None:
    """Record the origin of a path. A word in place of a section is its short form: `retrieval: true`
    sets `retrieval.enabled`."""
    origins[path] = origin
    if isinstance(value, bool | str):
        origins[*path, "enabled"] = origin


def _parse_value(text: str, variable: str) -> Any:
    """Parse a variable's value as YAML. If it is not YAML, return the text itself: a secret may
    look like broken YAML, and the setting decides whether it accepts text."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return text
    if isinstance(node, yaml.CollectionNode):
        return _Reader(f"env {variable}", {}).read_value(node, ())
    if isinstance(node, yaml.ScalarNode) and node.style is not None:  # quoted
        return node.value
    return _PLAIN_WORDS.get(text.strip(), text)


def render_path(path: Key) -> str:
    """Render a path as in `upstream[0].base_url` and `models["gpt-4o*"].scope`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"\w+", part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


class _Reader:
    """The reader of one text: it turns YAML nodes into data, records the origin of each path, and
    collects all faults."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.env = env
        self.origins: dict[Key, str] = {}
        self.hidden: set[Key] = set()
        self.faults: list[str] = []

    def parse_root(self, text: str) -> yaml.MappingNode | None:
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as exc:
            raise ConfigError(_render_syntax_error(self.name, text, exc)) from exc
        if node is None:
            return None
        if isinstance(node, yaml.ScalarNode) and node.value in _PLAIN_WORDS and not node.style:
            return None
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                f"{self.name}:{_get_line(node)}: the file must be a mapping of sections"
            )
        return node

    def read_value(self, node: yaml.Node, path: Key) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.read_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [
                self._record_and_read(item, (*path, index)) for index, item in enumerate(node.value)
            ]
        return self._read_scalar(node, path) if isinstance(node, yaml.ScalarNode) else None

    def read_mapping(self, node: yaml.MappingNode, path: Key) -> dict[str, Any]:
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in self._list_pairs(node):
            name = str(key.value)
            if not isinstance(key, yaml.ScalarNode):
                self.faults.append(f"{self.name}:{_get_line(key)}: a key must be a word")
            elif name in lines:
                self.faults.append(
                    f"{self.name}:{_get_line(key)}: {render_path((*path, name))} is set twice, first in line {lines[name]}"
                )
            else:
                lines[name] = _get_line(key)
                data[name] = self._record_and_read(value, (*path, name), _get_line(key))
        return data

    def _list_pairs(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """List the mapping's own keys, then the keys of `<<` that the mapping does not have."""
        names: set[Any] = set()
        merged_nodes: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                merged_nodes += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            yield key, value
            if isinstance(key, yaml.ScalarNode):
                names.add(key.value)
        for merged_node in merged_nodes:
            if not isinstance(merged_node, yaml.MappingNode):
                continue
            for key, value in self._list_pairs(merged_node):
                if key.value not in names:
                    names.add(key.value)
                    yield key, value

    def _record_and_read(self, node: yaml.Node, path: Key, line: int | None = None) -> Any:
        value = self.read_value(node, path)
        _record_origin(self.origins, path, f"{self.name}:{line or _get_line(node)}", value)
        return value

    def _read_scalar(self, node: yaml.ScalarNode, path: Key) -> Any:
        text = str(node.value)
        if node.style is None and _BARE_VARIABLE_PATTERN.fullmatch(text):
            self.faults.append(
                f"{self.name}:{_get_line(node)}: {render_path(path)}: a variable must be written "
                f"${{{text[1:]}}}; in quotes, it is text"
            )
        value = _VARIABLE_PATTERN.sub(lambda match: self._fill_variable(match, node, path), text)
        has_variable = value != text
        if has_variable:
            self.hidden.add(path)
        is_plain = node.style is None and (node.tag != _TEXT_TAG or has_variable)
        return _PLAIN_WORDS.get(value, value) if is_plain else value

    def _fill_variable(self, match: re.Match[str], node: yaml.Node, path: Key) -> str:
        is_escaped, name, default, is_malformed = match.groups()
        if is_escaped:
            return match[0][1:]
        where = f"{self.name}:{_get_line(node)}: {render_path(path)}"
        if is_malformed:
            self.faults.append(
                f"{where}: a variable must be written ${{NAME}} or ${{NAME:-default}}; $${{ is a literal ${{"
            )
        elif value := self.env.get(name) or default:
            return value
        elif default is None and name not in self.env:
            self.faults.append(
                f"{where}: the variable {name} is not set: set it, or write ${{{name}:-default}}"
            )
        return ""


def _get_line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


_NAME_PATTERN = re.compile(r"\b(alias|anchor|tag|tag handle) .*", re.DOTALL)


def _render_syntax_error(name: str, text: str, exc: yaml.YAMLError) -> str:
    """Render the line number and the problem. The line itself is left out, and so are names that
    YAML repeats from the line, because it may hold a key."""
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    problem = getattr(exc, "problem", None) or getattr(exc, "reason", None) or "it cannot be read"
    problem = _NAME_PATTERN.sub(r"\1", str(problem))
    if mark is None:
        return f"{name}: this is not YAML: {problem}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    hint = '; a variable inside {…} or […] needs quotes: "${NAME}"' if "${" in line else ""
    if "alias" in f"{getattr(exc, 'context', '')} {problem}":
        hint = '; a value that begins with * needs quotes: "*"'
    return f"{name}:{mark.line + 1}: this is not YAML: {problem}{hint}"
