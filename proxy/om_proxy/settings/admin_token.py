"""The admin token that a server makes for itself: kept in a file, where nobody has given one.

`OM_PROXY_ADMIN_TOKEN_FILE` names the file; the image sets it to /data/admin-token. A token that is
given (`OM_PROXY_ADMIN_TOKEN`, `server.admin_token`) counts before it.
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
    """The environment with the token from its file, which is made where there is none; and what
    went wrong, for a person.

    Where it went wrong the environment is as it was: the settings decide whether their address can
    do without a token, as they do where no file is named.
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
    """The file's text without blanks around it. Raises OSError, UnicodeDecodeError."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        make_token(file)
    return file.read_text(encoding="utf-8").strip()


def make_token(file: Path) -> None:
    """Write a new token, for the owner alone, whole or not at all. Raises OSError.

    Of two servers that begin at once the first one's file stays: `link` replaces none.
    """
    number, written = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)  # mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as draft:
            draft.write(f"{secrets.token_hex(TOKEN_BYTES)}\n")
            draft.flush()
            os.fsync(draft.fileno())
        try:
            os.link(written, file)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            os.replace(written, file)
    finally:
        Path(written).unlink(missing_ok=True)


def render_admin_token_place(settings: Settings, env: Mapping[str, str]) -> str | None:
    """Where the token in force is kept, for a person; None where it is none of the file's."""
    path, token = env.get(TOKEN_FILE_VARIABLE), settings.server.admin_token
    if not path or token is None:
        return None
    try:
        kept = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return f"admin token: in {path}" if kept == token.get_secret_value() else None
