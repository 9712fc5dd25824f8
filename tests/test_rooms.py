"""The house has few rooms, and few of them know each other.

The contracts in pyproject.toml say which room may import which; this counts those that do.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "proxy" / "om_proxy"
IMPORT = re.compile(r"^ *(?:from|import) om_proxy\.(\w+)", flags=re.M)
MAX_ROOMS = 14
MAX_ARROWS = 70  # 62 when the rooms were made


def list_rooms() -> set[str]:
    return {file.parent.name for file in PACKAGE.glob("*/__init__.py")}


def find_arrows() -> set[tuple[str, str]]:
    """Each room with one that a module of it imports, for whatever reason."""
    return {
        (room, imported)
        for room in list_rooms()
        for file in (PACKAGE / room).rglob("*.py")
        for imported in IMPORT.findall(file.read_text(encoding="utf-8"))
        if imported != room
    }


def test_rooms_are_few() -> None:
    assert len(list_rooms()) <= MAX_ROOMS


def test_arrows_are_few() -> None:
    """An import for type checking or in a function counts, too."""
    arrows = find_arrows()
    assert {imported for _, imported in arrows} <= list_rooms()
    assert len(arrows) <= MAX_ARROWS
