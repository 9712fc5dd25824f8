"""Render a chart of Helm's, as far as ours uses its templates: paths, `include`, `range` over a
mapping, and the functions in `FUNCTIONS`.

What it makes of `examples/helm` was once compared with Helm 4's own: the same documents.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Scope = dict[str, Any]
FUNCTIONS: dict[str, Callable[..., str]] = {
    "nindent": lambda count, text: "\n" + textwrap.indent(text, " " * int(count)),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toJson": json.dumps,
    "toYaml": lambda value: yaml.safe_dump(value).rstrip("\n"),
}


def render_chart(folder: Path, release: str, changes: Scope) -> list[Any]:
    """Return the documents of a first installation. `changes` replace values at the top."""
    values = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    scope = {"Values": values | changes, "Release": {"Name": release, "Revision": 1}}
    blocks: dict[str, list[str]] = {}
    for file in sorted((folder / "templates").glob("*.tpl")):
        _render(_split(file.read_text(encoding="utf-8")), scope, blocks)
    texts = [
        _render(_split(file.read_text(encoding="utf-8")), scope, blocks)
        for file in sorted((folder / "templates").glob("*.yaml"))
    ]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def _split(text: str) -> list[str]:
    """Return texts and actions by turns, the actions without braces."""
    text = re.sub(r"\s*\{\{-", "{{", re.sub(r"-\}\}\s*", "}}", text))
    return re.split(r"\{\{ ?(.*?) ?\}\}", text)


def _render(parts: list[str], scope: Scope, blocks: dict[str, list[str]]) -> str:
    made, place = parts[0], 1
    while place < len(parts):
        action, after = parts[place], place + 2
        if action.startswith(("define ", "range ")):
            end = _find_end(parts, place)
            body = parts[place + 1 : end]
            if action.startswith("define "):
                blocks[json.loads(action.split()[1])] = body
            else:
                names = re.findall(r"\$\w+", action)
                for item in sorted(_look_up(action.split()[-1], scope).items()):
                    made += _render(body, scope | dict(zip(names, item, strict=True)), blocks)
            place, after = end, end + 2
        elif not action.startswith("/*"):
            made += str(_evaluate(action, scope, blocks))
        made += parts[place + 1]
        place = after
    return made


def _find_end(parts: list[str], start: int) -> int:
    depth = 0
    for place in range(start, len(parts), 2):
        depth += {"define": 1, "range": 1, "end": -1}.get(parts[place].split()[0], 0)
        if depth == 0:
            return place
    raise ValueError(f"no end of {parts[start]!r}")


def _evaluate(action: str, scope: Scope, blocks: dict[str, list[str]]) -> Any:
    first, *pipes = (step.split() for step in action.split(" | "))
    if first[0] == "include":
        value: Any = _render(blocks[json.loads(first[1])], scope, blocks)
    elif first[0] in FUNCTIONS:
        value = FUNCTIONS[first[0]](_look_up(first[1], scope))
    else:
        value = _look_up(first[0], scope)
    for name, *arguments in pipes:
        value = FUNCTIONS[name](*arguments, value)
    return value


def _look_up(path: str, scope: Scope) -> Any:
    """Return the value; a name that is not there is an error, not an empty text as in Helm."""
    value: Any = scope
    for name in path.removeprefix("$.").removeprefix(".").split("."):
        value = value[name]
    return value
