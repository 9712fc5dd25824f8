"""The annotated configuration file, which ships with the program: what each setting means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

DISTRIBUTION_NAME = "observational-memory-proxy"
FILE_NAME = "om-proxy.yaml"

_COMMENT_LINE = re.compile(r" *# (.*)")
_KEY_LINE = re.compile(r" *(?:- )?(\w+):")
_ITEM_PLACE = re.compile(r"\[\d+\]")  # of an item in a list


def find_annotated_file() -> Path | None:
    """Find the file: beside the package in a checkout, else where the wheel put it."""
    in_checkout = Path(__file__).parents[4] / "config" / FILE_NAME
    if in_checkout.is_file():
        return in_checkout
    try:
        installed = files(DISTRIBUTION_NAME) or ()
    except PackageNotFoundError:
        return None
    paths = [Path(str(entry.locate())) for entry in installed if entry.name == FILE_NAME]
    return next((path.resolve() for path in paths if path.is_file()), None)


def find_words(name: str) -> str | None:
    """Return what the file says of a setting such as `upstream[0].name`; None if it says nothing."""
    return _load_words().get(_ITEM_PLACE.sub("", name)) or None


@cache
def _load_words() -> Mapping[str, str]:
    path = find_annotated_file()
    return list_words(path.read_text(encoding="utf-8")) if path else {}


def list_words(text: str) -> dict[str, str]:
    """List the comment above each key of a configuration file, by the key's whole name. A list
    counts as its first item."""
    words: dict[str, str] = {}
    above: list[str] = []
    keys: list[tuple[int, str]] = []  # the line's own and those it stands in, with their columns
    for line in text.splitlines():
        if comment := _COMMENT_LINE.fullmatch(line):
            above.append(comment[1])
            continue
        if key := _KEY_LINE.match(line):
            while keys and keys[-1][0] >= key.start(1):
                keys.pop()
            keys.append((key.start(1), key[1]))
            words.setdefault(".".join(name for _, name in keys), " ".join(above))
        above = []
    return words
