"""The system prompts of the two minds, put together from prompts/*.md."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from om_proxy.errors import ModelError

Level = Literal["none", "gentle", "strong", "stronger"]
LEVELS: tuple[Level, ...] = ("none", "gentle", "strong", "stronger")
Earlier = Literal["too-long", "cut-off", "unusable"]
EARLIER: dict[Earlier, str] = {
    "too-long": "An earlier rewriting of these notes was too long.",
    "cut-off": "An earlier answer was cut off before `</observations>`: keep to the size, so that yours can end.",
    "unusable": "An earlier answer was not in the format you were told.",
}
REWRITE = "Rewrite these notes now, in the format you were told and nothing else."

_SHIPPED = {"default": "observer", "condensed": "observer-condensed"}


def observer(
    variant: str, *, want_title: bool, instruction: str | None, threads: bool = False, want_suggestion: bool = False
) -> str:
    """`variant`: `default`, `condensed`, or the operator's own: a file's path, or the text itself when it has several lines.

    `threads`: the messages are of several conversations. Format and fence are told in every variant, also with the
    operator's: without them nothing could be parsed.
    """
    lessons = _shipped(_SHIPPED[variant]) if variant in _SHIPPED else _own(variant)
    title = _shipped("observer-title") if want_title else None
    suggestion = _shipped("observer-suggestion") if want_suggestion else None
    output = "\n".join(filter(None, (_shipped("observer-output"), suggestion, title)))
    several = _shipped("observer-threads") if threads else None
    return _joined(lessons, output, several, _asked(instruction))


def reflector(*, instruction: str | None, threads: bool = False) -> str:
    """The same at every level of guidance, so that a second try reads it and the notes from the model's prompt cache.

    `threads`: the notes are of several conversations.
    """
    several = _shipped("reflector-threads") if threads else None
    return _joined(_shipped("reflector"), _shipped("reflector-output"), several, _asked(instruction))


def guidance(level: Level, *, source_tokens: int, most_tokens: int, earlier: Earlier | None = None) -> str:
    """What a reflector is told behind the notes: how long they are and may become, and what was wrong with an earlier answer."""
    sizes = f"The notes above have about {source_tokens} tokens; write at most {most_tokens}."
    said = EARLIER[earlier] if earlier else None
    lesson = None if level == "none" else _shipped(f"reflector-{level}")
    return _joined("# This time", _line(said, sizes), lesson, REWRITE)


@cache
def _shipped(name: str) -> str:
    return files("om_proxy.agents").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8").strip()


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


def _line(*sentences: str | None) -> str:
    return " ".join(filter(None, sentences))


def _joined(*parts: str | None) -> str:
    return "\n\n".join(filter(None, parts))
