"""Translate a memory model's refusal into an error: try again, send less, or give up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from om_proxy.common.errors import ModelBusy, ModelError, PromptTooLong
from om_proxy.wire.apis.refusals import MAX_ERROR_TEXT_CHARS, is_too_long_text

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
    has_clean_code = isinstance(code, str | int) and _CODE.fullmatch(str(code))
    clean_code = str(code) if has_clean_code else ""
    text = f"the memory model's server answered {status} {clean_code}".rstrip()
    is_busy = status in BUSY_STATUSES or status >= 500
    is_client_error = status >= 400 and not is_busy
    server_text = f"{clean_code} {message[:MAX_ERROR_TEXT_CHARS]}"
    if status == 413 or (is_client_error and is_too_long_text(server_text)):
        return PromptTooLong(f"{text}: the prompt is too long")
    if clean_code in QUOTA_CODES:
        return ModelError(text, "see to the account's quota, or choose another memory.model")
    if is_busy:
        return ModelBusy(text, read_retry_after(headers, now))
    if status in (401, 403):
        return ModelError(
            text, "check memory.api_key, or the credential the model is inherited with"
        )
    if status == 404:
        return ModelError(text, "check memory.model and memory.api_base")
    return ModelError(text)


def read_error_text(error: Any) -> tuple[str | None, str]:
    """Read code and message of an error's JSON, in any form. They are for matching, never for
    showing. Servers repeat prompts in errors, so only the beginning is read."""
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        code = error.get("code") or error.get("type")
        code_text = str(code)[:MAX_ERROR_TEXT_CHARS] if isinstance(code, str | int) else None
        param = error.get("param")
        message = f"{param if isinstance(param, str) else ''} {error['message']}"
        return code_text, message[:MAX_ERROR_TEXT_CHARS]
    try:
        return None, orjson.dumps(error)[:MAX_ERROR_TEXT_CHARS].decode("utf-8", "replace")
    except orjson.JSONEncodeError:  # orjson reads more levels than it writes
        return None, ""


def read_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until the server wants to be asked again, or None if it names none that can
    be read."""
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
    """Parse a finite number that is not negative."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
