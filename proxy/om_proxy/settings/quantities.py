"""How a setting's text becomes a number with a unit: durations, sizes, ratios or tokens."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
BYTES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
# block_after: below it a multiple of the threshold, from it on tokens
# (docs/spec/config.md#quantities)
TOKENS_FROM = 100.0
KEEP_FROM = 1_000.0  # buffer_activation: from it on tokens to keep (docs/spec/config.md#quantities)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMG]i?B|B)?", re.ASCII)


def duration(value: Any) -> float:
    """Seconds. A float is taken as seconds already; text needs its unit: a bare `20` could mean anything."""
    if _is_number(value) and value > 0:
        return float(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = float(match[1]) * SECONDS[match[2]] if match else 0.0
    if not 0.0 < seconds < math.inf:
        raise ValueError("must be a duration above 0 with its unit: <n>ms, s, m, h or d, as in 30s")
    return seconds


def size(value: Any) -> int:
    """Bytes."""
    if _is_number(value) and value > 0 and int(value) == value:
        return int(value)
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = float(match[1]) * BYTES.get(match[2] or "", 0) if match else 0.0
    if not 1 <= size < math.inf:
        raise ValueError("must be a size above 0: <n> bytes, or with a unit KiB, MiB or GiB, as in 64MiB")
    return int(size)


def idle(value: Any) -> float | Literal["auto"] | None:
    """`off` (also false and null) is None."""
    if value is None or is_off(value):
        return None
    if value == "auto":
        return "auto"
    try:
        return duration(value)
    except ValueError:
        raise ValueError("must be off, auto, or a duration with its unit (<n>ms, s, m, h or d), as in 5m") from None


def share_or_tokens(value: Any) -> float | Literal[False]:
    """`buffer_tokens`: False, a share of the threshold below 1, or tokens."""
    if is_off(value):
        return False
    number = _number(value)
    if number is None or number <= 0 or (number >= 1 and number != int(number)):
        raise ValueError("must be false, a ratio above 0 and below 1, or a whole number of tokens")
    return number


def tokens_or_all(value: Any) -> int | Literal[False]:
    """`previous_observer_tokens`: False for all of them, or tokens from 0 on."""
    if is_off(value):
        return False
    number = _number(value)
    if number is None or number < 0 or number != int(number):
        raise ValueError("must be false (all of them), or a whole number of tokens, 0 or more")
    return int(number)


def removed_or_kept(value: Any) -> float:
    """`observation.buffer_activation`: the share removed, in (0, 1], or the tokens kept, from 1000 on."""
    number = _number(value)
    if number is None or not (0 < number <= 1 or number >= KEEP_FROM):
        raise ValueError("must be a ratio above 0 and at most 1, or tokens to keep, 1000 or more")
    return number


def multiple_or_tokens(value: Any) -> float:
    """`block_after`: a multiple of the threshold, in [1, 100), or tokens."""
    number = _number(value)
    if number is None or number < 1:
        raise ValueError(
            "must be a multiple of its threshold, 1 or more and below 100, or a number of tokens from 100 on"
        )
    return number


def switch(value: Any) -> Any:
    """`off` as YAML 1.1, JSON and people write it; a Literal checks the rest."""
    return "off" if is_off(value) else value


def is_off(value: Any) -> bool:
    return value is False or (isinstance(value, str) and value.strip().lower() in {"off", "false", "no"})


def resolved(value: float, whole: int) -> int:
    """Tokens of a ratio below 1, or the tokens themselves."""
    return max(1, round(whole * value)) if value < 1 else int(value)


def multiplied(value: float, threshold: int) -> int:
    """Tokens of a `block_after`. A multiple rounds up: it may not fall below its threshold."""
    return max(threshold, round(threshold * value)) if value < TOKENS_FROM else int(value)


def kept(value: float, threshold: int) -> int:
    """Tokens an activation aims to leave raw, of an `observation.buffer_activation`."""
    return round(threshold * (1 - value)) if value <= 1 else int(value)


def written_duration(seconds: float) -> str:
    """As the configuration writes it, in the largest unit that keeps it whole."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= SECONDS[unit] and seconds % SECONDS[unit] == 0:
            return f"{seconds / SECONDS[unit]:.0f}{unit}"
    return f"{round(seconds * 1_000, 3):.15g}ms"


def written_size(size: int) -> str:
    """As the configuration writes it, in the largest unit that keeps it whole."""
    for unit in ("GiB", "MiB", "KiB"):
        if size >= BYTES[unit] and size % BYTES[unit] == 0:
            return f"{size // BYTES[unit]}{unit}"
    return f"{size}B"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if _is_number(value) else None


Duration = Annotated[float, PlainValidator(duration)]  # seconds
Size = Annotated[int, PlainValidator(size)]  # bytes
Idle = Annotated[float | Literal["auto"] | None, PlainValidator(idle)]  # seconds
ShareOrTokens = Annotated[float | Literal[False], PlainValidator(share_or_tokens)]
TokensOrAll = Annotated[int | Literal[False], PlainValidator(tokens_or_all)]
RemovedOrKept = Annotated[float, PlainValidator(removed_or_kept)]
MultipleOrTokens = Annotated[float, PlainValidator(multiple_or_tokens)]
OffOrAuto = Annotated[Literal["off", "auto"], BeforeValidator(switch)]
