"""The Lua scripts that Redis runs: each is one step that nothing interrupts."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

COMMON_PART = "rows"  # every script begins with it


class Script(NamedTuple):
    """The text of a script, and the name by which the server knows it."""

    text: str
    sha: str


@cache
def read_script(name: str) -> Script:
    folder = files("om_proxy.storage.redis") / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (COMMON_PART, name))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
