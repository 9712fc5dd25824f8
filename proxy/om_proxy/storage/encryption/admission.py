"""Read the master keys from where the settings say they are: the text itself, a file, or what a
program prints. With them, or without, a process may use a database or not."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from om_proxy.common.errors import ConfigError, WrongMasterKey, render_install_command
from om_proxy.settings.identity.encryption_keys import COMMAND_PREFIX, FILE_PREFIX, parse_master_key

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

COMMAND_TIMEOUT_S = 10.0
MAX_KEY_CHARS = 1_000
ENCRYPTION_KEY_SETTING = "storage.encryption_key"


def load_master_keys(sources: Sequence[str]) -> MasterKeys | None:
    """Return the master keys, the newest first; None without any source. This waits for files and
    programs. Raise ConfigError, without a key in its text."""
    if not sources:
        return None
    try:
        # imported only where it is used: the package is an extra
        from om_proxy.storage.encryption.master_keys import MasterKeys  # noqa: PLC0415 - the package is an extra
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != "cryptography":
            raise
        raise ConfigError(
            f"{ENCRYPTION_KEY_SETTING}: encryption needs a package: {render_install_command('encryption')}"
        ) from exc
    return MasterKeys([_read_key(source) for source in sources])


def _read_key(source: str) -> bytes:
    if source.startswith(FILE_PREFIX):
        place, text = "the file", _read_file(source.removeprefix(FILE_PREFIX))
    elif source.startswith(COMMAND_PREFIX):
        place, text = "the program", _run_command(source.removeprefix(COMMAND_PREFIX))
    else:
        place, text = "it", source
    try:
        return parse_master_key(text)
    except ValueError:
        rule = "must hold one key, 32 bytes as base64 or hex"
        raise ConfigError(f"{ENCRYPTION_KEY_SETTING}: {place} {rule}") from None


def _read_file(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii", errors="replace") as file:
            return file.read(MAX_KEY_CHARS)
    except OSError as exc:
        raise ConfigError(
            f"{ENCRYPTION_KEY_SETTING}: the file cannot be read: {exc.strerror}"
        ) from exc


def _run_command(command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own program
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{ENCRYPTION_KEY_SETTING}: the program gave no key in {COMMAND_TIMEOUT_S:g} s"
        ) from None
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"{ENCRYPTION_KEY_SETTING}: the program cannot be run: {type(exc).__name__}"
        ) from None
    if done.returncode:
        raise ConfigError(
            f"{ENCRYPTION_KEY_SETTING}: the program ended with status {done.returncode}"
        )
    return done.stdout[:MAX_KEY_CHARS].decode("ascii", "replace")


# ── a database and its master key ──


def check_master(stored: str | None, masters: MasterKeys | None) -> None:
    """Raise WrongMasterKey unless the database may be used. `stored`: the id of the newest master key
    that its data keys are wrapped with; None: it is not encrypted."""
    if stored is None and masters is not None:
        raise WrongMasterKey(
            "the database is not encrypted, and storage.encryption_key is set: copy it into a new "
            "one that has the key (`om-proxy store copy FROM TO --verify`), or remove the key"
        )
    if stored is not None and masters is None:
        raise WrongMasterKey(
            f"the database is encrypted with the master key {stored}: set storage.encryption_key"
        )
    if stored is not None and masters is not None and stored not in masters.ids:
        raise WrongMasterKey(
            f"the database is encrypted with another master key, {stored}; "
            f"storage.encryption_key has {', '.join(masters.ids)}"
        )


def open_stored_secret(
    stored: bytes | None, master: str | None, masters: MasterKeys | None
) -> bytes:
    """Return the store's secret. `stored`: as it is stored, and `master`: as in `check_master`, both
    of one moment. Raise WrongMasterKey as that does."""
    check_master(master, masters)
    assert stored is not None  # who could read it would have stored one
    return masters.open_secret(stored) if masters else bytes(stored)
