"""Parse the text of a setting into a number: a duration, a size, a share or tokens."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator

SECONDS_BY_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
BYTES_BY_UNIT = {
    "": 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
# a smaller `block_after` is a multiple of its threshold (docs/contributing/config.md#quantities)
MIN_BLOCK_AFTER_TOKENS = 100.0
# a smaller `buffer_activation` is the share to remove (docs/contributing/config.md#quantities)
MIN_KEPT_TOKENS = 1_000.0

_DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMG]i?B|B)?", re.ASCII)


def parse_duration(value: Any) -> float:
    """Return seconds. A number is in seconds already. Text needs a unit, because a bare `20` could
    mean anything."""
    if _is_number(value) and value > 0:
        return float(value)
    match = _DURATION_PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = float(match[1]) * SECONDS_BY_UNIT[match[2]] if match else 0.0
    if not 0.0 < seconds < math.inf:
        raise ValueError("must be a duration above 0 with its unit: <n>ms, s, m, h or d, as in 30s")
    return seconds


def parse_size(value: Any) -> int:
    """Return a size in bytes. Text may have a unit."""
    if _is_number(value) and value > 0 and int(value) == value:
        return int(value)
    match = _SIZE_PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    size = float(match[1]) * BYTES_BY_UNIT.get(match[2] or "", 0) if match else 0.0
    if not 1 <= size < math.inf:
        raise ValueError(
            "must be a size above 0: <n> bytes, or with a unit KiB, MiB or GiB, as in 64MiB"
        )
    return int(size)


def parse_duration_or_auto(value: Any) -> float | Literal["auto"] | None:
    """Parse `activate_after_idle`. Return seconds, "auto", or None for `off`, false and null."""
    if value is None or is_off(value):
        return None
    if value == "auto":
        return "auto"
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError(
            "must be off, auto, or a duration with its unit (<n>ms, s, m, h or d), as in 5m"
        ) from None


def parse_share_or_tokens(value: Any) -> float | Literal[False]:
    """Parse `buffer_tokens`. Return False for off, a share of the threshold below 1, or tokens."""
    if is_off(value):
        return False
    number = _parse_number(value)
    if number is None or number <= 0 or (number >= 1 and number != int(number)):
        raise ValueError("must be false, a ratio above 0 and below 1, or a whole number of tokens")
    return number


def parse_tokens_or_all(value: Any) -> int | Literal[False]:
    """Parse `previous_observer_tokens`. Return False for all tokens, or a number of tokens from 0
    on."""
    if is_off(value):
        return False
    number = _parse_number(value)
    if number is None or number < 0 or number != int(number):
        raise ValueError("must be false (all of them), or a whole number of tokens, 0 or more")
    return int(number)


def parse_share_removed_or_tokens_kept(value: Any) -> float:
    """Parse `observation.buffer_activation`. Return the share to remove, in (0, 1], or the tokens
    to keep, from 1000 on."""
    number = _parse_number(value)
    if number is None or not (0 < number <= 1 or number >= MIN_KEPT_TOKENS):
        raise ValueError("must be a ratio above 0 and at most 1, or tokens to keep, 1000 or more")
    return number


def parse_multiple_or_tokens(value: Any) -> float:
    """Parse `block_after`. Return a multiple of the threshold, in [1, 100), or tokens."""
    number = _parse_number(value)
    if number is None or number < 1:
        raise ValueError(
            "must be a multiple of its threshold, 1 or more and below 100, or a number of tokens from 100 on"
        )
    return number


# YAML 1.1's words for true and false, which the file reads as text
SWITCH_WORDS = {"yes": True, "on": True, "no": False, "off": False}


def normalize_off(value: Any) -> Any:
    """Return "off" for each spelling of it (YAML 1.1, JSON). The type of the setting checks other
    values."""
    return "off" if is_off(value) else value


def is_off(value: Any) -> bool:
    return value is False or (
        isinstance(value, str) and value.strip().lower() in {"off", "false", "no"}
    )


def convert_share(value: float, threshold: int) -> int:
    """Return the tokens that a `buffer_tokens` means, which is a share of the threshold or a number
    of tokens."""
    return max(1, round(threshold * value)) if value < 1 else int(value)


def convert_multiple(value: float, threshold: int) -> int:
    """Return the tokens that a `block_after` means. Rounding never makes a multiple smaller than
    its threshold."""
    return (
        max(threshold, round(threshold * value)) if value < MIN_BLOCK_AFTER_TOKENS else int(value)
    )


def count_kept_tokens(value: float, threshold: int) -> int:
    """Return the number of tokens that an `observation.buffer_activation` aims to leave raw."""
    return round(threshold * (1 - value)) if value <= 1 else int(value)


def render_duration(seconds: float) -> str:
    """Render a duration as the file writes it, in the largest unit that gives a whole number."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= SECONDS_BY_UNIT[unit] and seconds % SECONDS_BY_UNIT[unit] == 0:
            return f"{seconds / SECONDS_BY_UNIT[unit]:.0f}{unit}"
    return f"{round(seconds * 1_000, 3):.15g}ms"


def render_size(size: int) -> str:
    """Render a size as the file writes it, in the largest unit that gives a whole number."""
    for unit in ("GiB", "MiB", "KiB"):
        if size >= BYTES_BY_UNIT[unit] and size % BYTES_BY_UNIT[unit] == 0:
            return f"{size // BYTES_BY_UNIT[unit]}{unit}"
    return f"{size}B"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _parse_number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if _is_number(value) else None


Duration = Annotated[float, PlainValidator(parse_duration)]  # in seconds
Size = Annotated[int, PlainValidator(parse_size)]  # in bytes
# in seconds; None: off
DurationOrAuto = Annotated[float | Literal["auto"] | None, PlainValidator(parse_duration_or_auto)]
# False: off
ShareOrTokens = Annotated[float | Literal[False], PlainValidator(parse_share_or_tokens)]
TokensOrAll = Annotated[int | Literal[False], PlainValidator(parse_tokens_or_all)]  # False: all
ShareRemovedOrTokensKept = Annotated[float, PlainValidator(parse_share_removed_or_tokens_kept)]
MultipleOrTokens = Annotated[float, PlainValidator(parse_multiple_or_tokens)]
OffOrAuto = Annotated[Literal["off", "auto"], BeforeValidator(normalize_off)]
