"""Translate a memory model's refusal: try again, send less, or give up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from om_proxy.apis.refusals import MAX_ERROR_TEXT_CHARS, is_too_long_text
from om_proxy.errors import ModelBusy, ModelError, PromptTooLong

BUSY_STATUSES = frozenset({408, 409, 425, 429})  # and every 5xx
# sent with 429, but waiting does not pay the bill
QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})

_CODE = re.compile(r"[\w.-]{1,64}")


def build_model_error(
    status: int, *, code: object, message: str, headers: Mapping[str, str], now: float
) -> ModelBusy | PromptTooLong | ModelError:
    """Build the error for an answer with this status.

    The server's `message` is read here and never passed on: it may quote the prompt. `now`: unix
    seconds, for a Retry-After date. Header names are in lower case.
    """
    error = _choose_error(status, code=code, message=message, headers=headers, now=now)
    error.server_status = status
    return error


def _choose_error(
    status: int, *, code: object, message: str, headers: Mapping[str, str], now: float
) -> ModelBusy | PromptTooLong | ModelError:
    named = str(code) if isinstance(code, str | int) and _CODE.fullmatch(str(code)) else ""
    said = f"the memory model's server answered {status} {named}".rstrip()
    if status == 413 or (
        400 <= status < 500
        and status not in BUSY_STATUSES
        and is_too_long_text(f"{named} {message[:MAX_ERROR_TEXT_CHARS]}")
    ):
        return PromptTooLong(f"{said}: the prompt is too long")
    if named in QUOTA_CODES:
        return ModelError(said, "see to the account's quota, or choose another memory.model")
    if status in BUSY_STATUSES or status >= 500:
        return ModelBusy(said, read_retry_after(headers, now))
    if status in (401, 403):
        return ModelError(
            said, "check memory.api_key, or the credential the model is inherited with"
        )
    if status == 404:
        return ModelError(said, "check memory.model and memory.api_base")
    return ModelError(said)


def read_error_text(error: Any) -> tuple[str | None, str]:
    """Read code and message of an error's JSON, in any form; for matching only, never for showing.
    Servers repeat prompts in errors, so only the beginning is read."""
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        code, param = error.get("code") or error.get("type"), error.get("param")
        message = f"{param if isinstance(param, str) else ''} {error['message']}"[
            :MAX_ERROR_TEXT_CHARS
        ]
        return str(code)[:MAX_ERROR_TEXT_CHARS] if isinstance(code, str | int) else None, message
    try:
        return None, orjson.dumps(error)[:MAX_ERROR_TEXT_CHARS].decode("utf-8", "replace")
    except orjson.JSONEncodeError:  # it reads more levels than it writes
        return None, ""


def read_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until the server wants to be asked again; None: it names none that can be
    read."""
    milliseconds = _parse_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _parse_number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        return max(parsedate_to_datetime(value).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None


def _parse_number(value: str | None) -> float | None:
    """Parse a finite number from 0 on."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
