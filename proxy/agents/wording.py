"""The system prompts of the two minds, put together from prompts/*.md."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from proxy.errors import ModelError

Level = Literal["none", "gentle", "strong", "stronger"]
LEVELS: tuple[Level, ...] = ("none", "gentle", "strong", "stronger")

_SHIPPED = {"default": "observer", "condensed": "observer-condensed"}


def observer(variant: str, *, want_title: bool, instruction: str | None, threads: bool = False) -> str:
    """`variant`: `default`, `condensed`, or the operator's own: a file's path, or the text itself when it has several lines.

    `threads`: the messages are of several conversations. Format and fence are told in every variant, also with the
    operator's: without them nothing could be parsed.
    """
    lessons = _shipped(_SHIPPED[variant]) if variant in _SHIPPED else _own(variant)
    title = _shipped("observer-title") if want_title else None
    output = "\n".join(filter(None, (_shipped("observer-output"), title)))
    several = _shipped("observer-threads") if threads else None
    return _joined(lessons, output, several, _asked(instruction))


def reflector(level: Level, *, instruction: str | None, threads: bool = False) -> str:
    """`threads`: the notes are of several conversations."""
    guidance = None if level == "none" else _shipped(f"reflector-{level}")
    several = _shipped("reflector-threads") if threads else None
    return _joined(_shipped("reflector"), _shipped("reflector-output"), several, guidance, _asked(instruction))


@cache
def _shipped(name: str) -> str:
    return files("proxy.agents").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8").strip()


def _own(variant: str) -> str:
    """Read at every call: the operator may be writing on it."""
    if "\n" in variant:
        return variant.strip()
    try:
        return Path(variant).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ModelError(f"observation.prompt: the file cannot be read ({type(exc).__name__})") from exc


def _asked(instruction: str | None) -> str | None:
    return f"# Also asked of you\n\n{instruction.strip()}" if instruction and instruction.strip() else None


def _joined(*parts: str | None) -> str:
    return "\n\n".join(filter(None, parts))
