"""Assemble the system prompts of observer and reflector from prompts/*.md."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from om_proxy.common.errors import ModelError

Level = Literal["none", "gentle", "strong", "stronger"]
LEVELS: tuple[Level, ...] = ("none", "gentle", "strong", "stronger")
EarlierFault = Literal["too-long", "cut-off", "unusable"]
EARLIER_FAULTS: dict[EarlierFault, str] = {
    "too-long": "An earlier rewriting of these notes was too long.",
    "cut-off": "An earlier answer was cut off before `</observations>`: keep to the size, so that yours can end.",
    "unusable": "An earlier answer was not in the format you were told.",
}
_CONDENSED_BEFORE = (
    "They were condensed {times} before, at least in part: what is left was chosen. Cut its words"
    " and merge its lines, but drop no fact that still holds."
)
REWRITE_REQUEST = "Rewrite these notes now, in the format you were told and nothing else."

_SHIPPED_PROMPTS = {"default": "observer", "condensed": "observer-condensed"}


def write_observer_prompt(
    variant: str,
    *,
    want_title: bool,
    instruction: str | None,
    threads: bool = False,
    want_suggestion: bool = False,
) -> str:
    """Write the observer's system prompt. `variant`: `default`, `condensed`, or the operator's own,
    which is a file's path or a text of several lines.

    `threads`: whether the messages are of several conversations. Every variant gets the format and
    the fence, also the operator's: without them no answer could be parsed.
    """
    lessons = (
        _read_shipped_prompt(_SHIPPED_PROMPTS[variant])
        if variant in _SHIPPED_PROMPTS
        else _read_own_prompt(variant)
    )
    title = _read_shipped_prompt("observer-title") if want_title else None
    suggestion = _read_shipped_prompt("observer-suggestion") if want_suggestion else None
    output = "\n".join(filter(None, (_read_shipped_prompt("observer-output"), suggestion, title)))
    threads_part = _read_shipped_prompt("observer-threads") if threads else None
    return _join_parts(lessons, output, threads_part, _render_own_instruction(instruction))


def write_reflector_prompt(*, instruction: str | None, threads: bool = False) -> str:
    """Write the reflector's system prompt. It is the same at every level of guidance, so a second
    try reads it and the notes from the model's prompt cache. `threads`: whether the notes are of
    several conversations."""
    threads_part = _read_shipped_prompt("reflector-threads") if threads else None
    return _join_parts(
        _read_shipped_prompt("reflector"),
        _read_shipped_prompt("reflector-output"),
        threads_part,
        _render_own_instruction(instruction),
    )


def write_guidance(
    level: Level,
    *,
    source_tokens: int,
    max_tokens: int,
    earlier: EarlierFault | None = None,
    depth: int = 0,
) -> str:
    """Write the text after the notes: their size, the size to reach, how often they were condensed,
    and the fault of an earlier answer."""
    sizes = f"The notes above have about {source_tokens} tokens; write at most {max_tokens}."
    condensed = _CONDENSED_BEFORE.format(times="once" if depth == 1 else f"{depth} times")
    fault = EARLIER_FAULTS[earlier] if earlier else None
    lesson = None if level == "none" else _read_shipped_prompt(f"reflector-{level}")
    sentences = _join_sentences(fault, sizes, condensed if depth else None)
    return _join_parts("# This time", sentences, lesson, REWRITE_REQUEST)


@cache
def _read_shipped_prompt(name: str) -> str:
    return (
        files("om_proxy.agents")
        .joinpath("prompts", f"{name}.md")
        .read_text(encoding="utf-8")
        .strip()
    )


def _read_own_prompt(variant: str) -> str:
    """Read the operator's prompt. It is read at every call, because the file may have changed."""
    if "\n" in variant:
        return variant.strip()
    try:
        return Path(variant).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ModelError(
            f"observation.prompt: the file cannot be read ({type(exc).__name__})"
        ) from exc


def _render_own_instruction(instruction: str | None) -> str | None:
    return (
        f"# Also asked of you\n\n{instruction.strip()}"
        if instruction and instruction.strip()
        else None
    )


def _join_sentences(*sentences: str | None) -> str:
    return " ".join(filter(None, sentences))


def _join_parts(*parts: str | None) -> str:
    return "\n\n".join(filter(None, parts))
