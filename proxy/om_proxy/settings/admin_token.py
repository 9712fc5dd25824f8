"""Make an admin token and keep it in a file, for a server that was given none.

`OM_PROXY_ADMIN_TOKEN_FILE` names the file; the image sets it to /data/admin-token. A given token
(`OM_PROXY_ADMIN_TOKEN`, `server.admin_token`) takes precedence.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from om_proxy.settings.snapshot import Settings

TOKEN_VARIABLE = "OM_PROXY_ADMIN_TOKEN"  # noqa: S105 - a variable's name
TOKEN_FILE_VARIABLE = "OM_PROXY_ADMIN_TOKEN_FILE"  # noqa: S105 - likewise
TOKEN_VARIABLES = (TOKEN_VARIABLE, "OM_PROXY__SERVER__ADMIN_TOKEN")
TOKEN_BYTES = 32


def add_admin_token(env: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """Return the environment with the token from its file, and an error message or None. A missing
    file is made.

    After an error the environment is unchanged: the settings then decide whether their address
    needs a token, as if no file were named.
    """
    path = env.get(TOKEN_FILE_VARIABLE)
    if not path or any(env.get(name) for name in TOKEN_VARIABLES):
        return env, None
    try:
        token = read_or_make_token(Path(path))
    except (OSError, UnicodeDecodeError) as exc:
        fault = f"cannot read or write the admin token file {path} ({type(exc).__name__}): set {TOKEN_VARIABLE}"
        return env, fault
    if not token:
        return env, f"the admin token file {path} is empty: remove it, or set {TOKEN_VARIABLE}"
    return {**env, TOKEN_VARIABLE: token}, None


def read_or_make_token(file: Path) -> str:
    """Return the file's text without white space around it. Raises OSError, UnicodeDecodeError."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        make_token(file)
    return file.read_text(encoding="utf-8").strip()


def make_token(file: Path) -> None:
    """Write a new token that only the owner can read, whole or not at all. Raises OSError.

    If two servers start at once, the first one's file stays: `link` replaces no file.
    """
    # mode 0600
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
    path, token = env.get(TOKEN_FILE_VARIABLE), settings.server.admin_token
    if not path or token is None:
        return None
    try:
        stored = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return f"admin token: in {path}" if stored == token.get_secret_value() else None
