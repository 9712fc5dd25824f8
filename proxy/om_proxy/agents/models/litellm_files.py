"""Find the files of litellm without importing it, which would cost seconds and 200 MB."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def find_litellm_file(name: str) -> Path | None:
    """Return the path of one of litellm's files; None if litellm or the file is not installed."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, name)
        if path.exists():
            return path
    return None
