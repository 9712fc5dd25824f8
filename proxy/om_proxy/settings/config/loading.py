"""Load checked Settings from a file and the environment. If anything is wrong, raise one
ConfigError that lists every fault.

A server without an admin token creates one and keeps it in the file that `OM_PROXY_ADMIN_TOKEN_FILE`
names; the image sets it to /data/admin-token. A token in the settings (`OM_PROXY_ADMIN_TOKEN`,
`server.admin_token`) takes precedence.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from om_proxy.common.errors import ConfigError
from om_proxy.settings.config.sections.storage import StorageSettings
from om_proxy.settings.config.snapshot import Settings
from om_proxy.settings.config.source import OVERRIDE_PREFIX, read_document
from om_proxy.settings.config.validation_messages import find_setting, list_faults, render_fault

DEFAULT_FILE = Path("config/om-proxy.yaml")
STORE_URL = ("storage", "url")
TOKEN_VARIABLE = "OM_PROXY_ADMIN_TOKEN"  # noqa: S105 - a variable's name
TOKEN_FILE_VARIABLE = "OM_PROXY_ADMIN_TOKEN_FILE"  # noqa: S105 - a variable's name
TOKEN_VARIABLES = (TOKEN_VARIABLE, "OM_PROXY__SERVER__ADMIN_TOKEN")
TOKEN_BYTES = 32
_SHORT_PREFIX = "OM_PROXY_"
# each is read by its name
_KNOWN_NAMES = frozenset(
    f"{_SHORT_PREFIX}{name}"
    for name in ("CONFIG", "ADMIN_TOKEN", "ADMIN_TOKEN_FILE", "OLD_CREDENTIAL", "NEW_CREDENTIAL")
)


def load(path: str | Path | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Load the file `path`, else `OM_PROXY_CONFIG`, else ./config/om-proxy.yaml, else the built-in
    defaults.

    `env` replaces `os.environ`. If the environment names a file for the admin token, and that file
    is missing, create it. Raises ConfigError.
    """
    env, token_fault = add_admin_token(os.environ if env is None else env)
    file = find_config_file(path, env)
    try:
        if file is None:
            return parse("", "built-in defaults", env)
        return parse(read_file(file), str(file), env).with_source(file=file)
    except ConfigError as exc:
        if token_fault is None:
            raise
        raise ConfigError(f"{exc}\n{token_fault}") from exc


def load_named_store(path: str | Path) -> StorageSettings:
    """Load the store that a command names by its file. Raises ConfigError, also if a variable
    is in place of the file's `storage.url`: the command would open another store."""
    settings = load(path)
    origin = settings.origin(STORE_URL) or ""
    variable = origin.removeprefix("env ")
    if variable == origin:
        return settings.storage
    of_file = load(path, {name: value for name, value in os.environ.items() if name != variable})
    file_origin = of_file.origin(STORE_URL)
    if file_origin is not None and of_file.storage.url != settings.storage.url:
        raise ConfigError(
            f"{file_origin}: storage.url: {variable} names another store: "
            "run this command without that variable"
        )
    return settings.storage


def find_config_file(path: str | Path | None, env: Mapping[str, str]) -> Path | None:
    """Return the configuration file to use; None for the built-in defaults."""
    if chosen_path := path or env.get("OM_PROXY_CONFIG"):
        return Path(chosen_path)
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def read_file(file: Path) -> str:
    """Return the file's text. Raises ConfigError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        is_encoded = isinstance(exc, UnicodeDecodeError)
        remedy = "save it as UTF-8" if is_encoded else "name a readable configuration file"
        raise ConfigError(f"{file}: cannot be read ({type(exc).__name__}): {remedy}") from exc


def parse(text: str, name: str = "om-proxy.yaml", env: Mapping[str, str] | None = None) -> Settings:
    """Parse the text of a file. `name` is used in errors and origins. Without `env`, no variable is
    set. Raises ConfigError."""
    document = read_document(text, name, env or {})
    try:
        settings = Settings.model_validate(document.data)
        faults = list(settings.list_override_faults())
    except ValidationError as exc:
        settings = Settings()
        faults = list(list_faults(exc))
    if faults:
        lines = [render_fault(document, Settings, path, rule) for path, rule in faults]
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    ignored = tuple(_list_ignored_variables(env or {}, text))
    return settings.with_source(origins=document.origins, ignored_variables=ignored)


def _list_ignored_variables(env: Mapping[str, str], text: str) -> Iterator[str]:
    """List a warning for each variable that looks like a setting, and that nothing reads: one
    underscore where the prefix has two. `text`: the file, which may use variables of any name.

    Kubernetes gives every container `<SERVICE>_PORT=tcp://…` for a service, so those are none."""
    for name in sorted(env):
        is_ours = name.upper().startswith(_SHORT_PREFIX) and not name.startswith(OVERRIDE_PREFIX)
        is_used = name in _KNOWN_NAMES or f"${{{name}" in text or env[name].startswith("tcp://")
        if not is_ours or is_used:
            continue
        words = name.lower()[len(_SHORT_PREFIX) :].strip("_").replace("__", "_")
        if path := find_setting(Settings, words) or find_setting(Settings, f"server_{words}"):
            variable = OVERRIDE_PREFIX + "__".join(path).upper()
            yield f"env {name} is not read: the setting's variable is {variable}"


# ── the admin token ───────────────────────────────────────────────────────────────────────────────


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
