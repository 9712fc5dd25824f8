"""Write an annotated configuration file, and sign tokens with its secret."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from om_proxy.cli.exit_status import DONE
from om_proxy.common.errors import ConfigError, UsageError
from om_proxy.settings.config import load
from om_proxy.settings.config.annotations import DISTRIBUTION_NAME, FILE_NAME, find_annotated_file
from om_proxy.settings.config.sections.quantities import parse_duration
from om_proxy.settings.identity.naming import is_valid_name
from om_proxy.settings.identity.user_token import Claims, sign_claims


def init(options: argparse.Namespace) -> int:
    """Write the file. Never overwrite a file, which somebody may have edited."""
    annotated_file = find_annotated_file()
    if annotated_file is None:
        raise ConfigError(f"this installation lacks {FILE_NAME}: install {DISTRIBUTION_NAME} again")
    text = annotated_file.read_text(encoding="utf-8")
    path = Path(options.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as exc:
        raise UsageError(f"{path} exists already: edit it, or name another path") from exc
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be written ({exc.strerror}): name a path where you may write"
        ) from exc
    print(
        f"wrote {path}; every setting in it has its default. "
        f"Edit it, then: om-proxy check --config {path}"
    )
    return DONE


def print_token(options: argparse.Namespace) -> int:
    """Print a token that is signed with `auth.token_secret`."""
    auth = load(options.config).auth
    if auth.token_secret is None:
        raise ConfigError(
            "auth.token_secret is not set: set it to the output of `openssl rand -hex 32`"
        )
    names = [name for name in (options.resource, options.thread) if name is not None]
    if not all(map(is_valid_name, names)):
        raise UsageError(
            "--resource and --thread must be 1 to 256 bytes of printable text, "
            "without blanks around it"
        )
    try:
        expires_at = time.time() + parse_duration(options.ttl)
    except ValueError as exc:
        raise UsageError(f"--ttl = {options.ttl}: {exc}") from exc
    tenant = choose_token_tenant(options.tenant, sorted({key.tenant for key in auth.keys}))
    claims = Claims(
        resource=options.resource,
        exp=round(expires_at),
        thread=options.thread,
        tenant=tenant,
        aud=auth.token_audience,
    )
    print(sign_claims(claims, auth.token_secret.get_secret_value().encode()))
    return DONE


def choose_token_tenant(requested: str | None, tenants: Sequence[str]) -> str | None:
    """Return the tenant of the token: the requested one, or the only one; None if there are no
    keys."""
    if requested is None and len(tenants) < 2:
        return tenants[0] if tenants else None
    if requested not in tenants:
        raise UsageError(
            f"--tenant must be one of auth.keys: {', '.join(tenants) or 'there are none'}"
        )
    return requested
