"""Create an admin token and keep it in a file, for a server that has none.

`OM_PROXY_ADMIN_TOKEN_FILE` names the file; the image sets it to /data/admin-token. A token in the
settings (`OM_PROXY_ADMIN_TOKEN`, `server.admin_token`) takes precedence.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from om_proxy.settings.config.snapshot import Settings

TOKEN_VARIABLE = "OM_PROXY_ADMIN_TOKEN"  # noqa: S105 - a variable's name
TOKEN_FILE_VARIABLE = "OM_PROXY_ADMIN_TOKEN_FILE"  # noqa: S105 - a variable's name
TOKEN_VARIABLES = (TOKEN_VARIABLE, "OM_PROXY__SERVER__ADMIN_TOKEN")
TOKEN_BYTES = 32


def add_admin_token(env: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """Return the environment with the token from its file, and an error message or None. If the
    file is missing, create it.

    After an error the environment is unchanged. The settings then decide whether the server's
    address needs a token, as if no file were named.
    """
    path = env.get(TOKEN_FILE_VARIABLE)
    if not path or any(env.get(name) for name in TOKEN_VARIABLES):
        return env, None
    try:
        token = read_or_create_token(Path(path))
    except (OSError, UnicodeDecodeError) as exc:
        return env, (
            f"cannot read or write the admin token file {path} ({type(exc).__name__}):"
            f" set {TOKEN_VARIABLE}"
        )
    if not token:
        return env, f"the admin token file {path} is empty: remove it, or set {TOKEN_VARIABLE}"
    return {**env, TOKEN_VARIABLE: token}, None


def read_or_create_token(file: Path) -> str:
    """Return the token in the file. If the file is missing, create it. Raises OSError,
    UnicodeDecodeError."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        create_token(file)
    return file.read_text(encoding="utf-8").strip()


def create_token(file: Path) -> None:
    """Write a new token that only its owner can read. The file is complete from the moment it
    exists. Raises OSError.

    If two servers start at the same time, the first server's file stays, because `link` replaces no
    file.
    """
    # mkstemp makes a file with mode 0600
    descriptor, draft_path = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as draft:
            draft.write(f"{secrets.token_hex(TOKEN_BYTES)}\n")
            draft.flush()
            os.fsync(draft.fileno())
        try:
            os.link(draft_path, file)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            os.replace(draft_path, file)
    finally:
        Path(draft_path).unlink(missing_ok=True)


def render_admin_token_file(settings: Settings, env: Mapping[str, str]) -> str | None:
    """Return a line that names the token's file; None if the token in force is not the file's."""
    path = env.get(TOKEN_FILE_VARIABLE)
    token = settings.server.admin_token
    if not path or token is None:
        return None
    try:
        stored_token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return f"admin token: in {path}" if stored_token == token.get_secret_value() else None
