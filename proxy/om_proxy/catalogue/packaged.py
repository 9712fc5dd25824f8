"""Where litellm keeps the files we read: found without importing it, which would cost seconds and 200 MB."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def litellm_file(name: str) -> Path | None:
    """The path of one of litellm's own files; None where it is not installed or has no such file."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, name)
        if path.exists():
            return path
    return None
