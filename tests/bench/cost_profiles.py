"""The profiles that config/om-proxy.yaml offers to copy, as settings to replay with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CONFIG = Path(__file__).parents[2] / "config" / "om-proxy.yaml"
_PROFILE = re.compile(
    r"^# (?P<name>[\w ]+): .*\n(?:#(?: .*)?\n)*(?P<text>(?:#\| .*\n?)+)", re.MULTILINE
)
_MODELS = {"default": "gemini/gemini-3.5-flash-lite"}


class Profile(NamedTuple):
    name: str
    observer: str | None  # a model's name without its provider; None: left open
    settings: str  # of the memory's section, in YAML's flow form


def profiles(text: str) -> Iterator[Profile]:
    """In the order of the file. Who observes is left out of `settings`: a replay has a note-taker
    of its own."""
    for found in _PROFILE.finditer(text):
        memory: dict[str, Any] = yaml.safe_load(
            re.sub(r"^#\| ", "", found["text"], flags=re.MULTILINE)
        )["memory"]
        model = memory.pop("model", None)
        observer = _MODELS.get(model, model).rpartition("/")[2] if model else None
        yield Profile(found["name"], observer, json.dumps(memory)[1:-1])
