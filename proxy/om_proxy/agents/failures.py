"""What a model server's refusal means for whoever asked: try again, send less, or give up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from om_proxy.errors import ModelBusy, ModelError, PromptTooLong
from om_proxy.wire.refusals import TEXT, means_too_long

BUSY = frozenset({408, 409, 425, 429})  # and every 5xx
BROKE = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached"}
)  # sent with 429, but waiting does not pay the bill

_WORD = re.compile(r"[\w.-]{1,64}")


def failure(
    status: int, *, code: object, message: str, headers: Mapping[str, str], now: float
) -> ModelBusy | PromptTooLong | ModelError:
    """The error for an answer with this status. `message` is the server's; it is read here and never passed on, as it may
    quote the prompt; its beginning is enough. `now`: unix seconds, for a Retry-After that names a date. Header names in lower case."""
    error = _failure(status, code=code, message=message, headers=headers, now=now)
    error.answered = status
    return error


def _failure(
    status: int, *, code: object, message: str, headers: Mapping[str, str], now: float
) -> ModelBusy | PromptTooLong | ModelError:
    named = str(code) if isinstance(code, str | int) and _WORD.fullmatch(str(code)) else ""
    said = f"the memory model's server answered {status} {named}".rstrip()
    if status == 413 or (400 <= status < 500 and status not in BUSY and means_too_long(f"{named} {message[:TEXT]}")):
        return PromptTooLong(f"{said}: the prompt is too long")
    if named in BROKE:
        return ModelError(said, "see to the account's quota, or choose another memory.model")
    if status in BUSY or status >= 500:
        return ModelBusy(said, retry_after(headers, now))
    if status in (401, 403):
        return ModelError(said, "check memory.api_key, or the credential the model is inherited with")
    if status == 404:
        return ModelError(said, "check memory.model and memory.api_base")
    return ModelError(said)


def complaint(error: Any) -> tuple[str | None, str]:
    """Code and message of an error's JSON, in whatever form; for matching only, never for showing. Servers repeat prompts in them:
    no more is taken than says what is wrong."""
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        code, param = error.get("code") or error.get("type"), error.get("param")
        message = f"{param if isinstance(param, str) else ''} {error['message']}"[:TEXT]
        return str(code)[:TEXT] if isinstance(code, str | int) else None, message
    try:
        return None, orjson.dumps(error)[:TEXT].decode("utf-8", "replace")
    except orjson.JSONEncodeError:  # it reads more levels than it writes
        return None, ""


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until the server wants to be asked again; None where it names none we understand."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        return max(parsedate_to_datetime(value).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None


def _number(value: str | None) -> float | None:
    """A finite number from 0 on."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
