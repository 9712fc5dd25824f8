"""Which version of a client is installed in a folder: of a Python package in `venv/`, or of a
package in `node_modules/`."""

from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path


def version(package: str, folder: Path) -> str:
    """The version, or `?` where the package is not found."""
    node = folder / "node_modules" / package / "package.json"
    if node.is_file():
        return str(json.loads(node.read_text(encoding="utf-8"))["version"])
    places = [str(place) for place in (folder / "venv").glob("lib/python*/site-packages")]
    return next((found.version for found in distributions(name=package, path=places)), "?")
