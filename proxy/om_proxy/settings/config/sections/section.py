"""The base class of every section of the configuration: frozen, without unknown keys, and checked
when it is made."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

Fault = tuple[str, str]  # the name of a setting, and the rule that its value breaks
Layout = Literal["auto", "blocks", "merged"]
Count = Annotated[int, Field(ge=1)]
Tokens = Annotated[int, Field(ge=1, le=10**9)]  # a threshold; no model's window is this large
Text = Annotated[str, Field(min_length=1)]
ENDPOINT_PATHS = ("/chat/completions", "/responses", "/messages")


def convert_empty_to_none(value: Any) -> Any:
    """Convert "" to None, because `"${NAME:-}"` gives "" for an unset variable."""
    return None if value == "" else value


def _strip_text(value: Any) -> Any:
    """Strip a text: a variable's value has the end of a line easily, and no header takes one."""
    return value.strip() if isinstance(value, str) else value


Secret = Annotated[SecretStr | None, BeforeValidator(convert_empty_to_none)]
HeaderKey = Annotated[Secret, BeforeValidator(_strip_text)]


class Section(BaseModel):
    """A mapping of the configuration. config/om-proxy.yaml describes each setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise one error for all faults of a section, if there are any."""
    if faults:
        text = "; ".join(f"{name}: {rule}" for name, rule in faults)
        raise PydanticCustomError("om_rules", "{text}", {"text": text, "faults": tuple(faults)})


def normalize_base_url(value: str) -> str:
    """Return an HTTP base URL without its last slash and the blanks around it. Raises ValueError for a
    URL with a user or a query, because a credential in it would reach logs and error texts, and for
    one with a blank, which would cut the line of a request."""
    value = value.strip()
    try:
        parts = urlsplit(value)
        has_host = bool(parts.hostname) and parts.port != 0
        is_http_url = has_host and parts.scheme in {"http", "https"} and len(value.split()) == 1
    except ValueError:
        is_http_url = False
    if not is_http_url or parts.username or parts.query or parts.fragment:
        raise ValueError(
            "must be http:// or https:// with a host, and without a user, query, fragment or blank"
        )
    base = value.rstrip("/")
    # a URL copied from a curl example: requests would go to …/chat/completions/chat/completions
    if path := next((one for one in ENDPOINT_PATHS if base.endswith(one)), None):
        raise ValueError(
            f"must end before {path}, as in https://api.openai.com/v1: the proxy adds that path"
        )
    return base


def check_webhook_url(value: str) -> str:
    """Return an HTTP URL as it is. It may have a query, but no user: a key in the query stays out
    of logs, which name the host only."""
    try:
        parts = urlsplit(value)
        is_http_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http_url = False
    if not is_http_url or parts.username or parts.fragment:
        raise ValueError("must be http:// or https:// with a host, and without a user or fragment")
    return value


def read_webhook_secret(secret: str) -> bytes:
    """Return the key that a webhook's secret holds. Raises ValueError for one that no library of
    Standard Webhooks would take."""
    prefix, _, encoded = secret.partition("_")
    try:
        key = b64decode(encoded, validate=True)
    except ValueError:
        key = b""
    if prefix != "whsec" or not 24 <= len(key) <= 64:
        raise ValueError(
            "must be whsec_ and 24 to 64 bytes in base64; "
            'make one with: echo "whsec_$(openssl rand -base64 32)"'
        )
    return key


def _check_webhook_secret(secret: SecretStr) -> SecretStr:
    read_webhook_secret(secret.get_secret_value())
    return secret


WebhookSecret = Annotated[SecretStr, AfterValidator(_check_webhook_secret)]
WebhookUrl = Annotated[str, AfterValidator(check_webhook_url)]
Url = Annotated[str, AfterValidator(normalize_base_url)]
