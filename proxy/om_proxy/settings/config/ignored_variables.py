"""Find variables of the environment that look like settings, and that nothing reads: one underscore
where the prefix has two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from om_proxy.settings.config.snapshot import Settings
from om_proxy.settings.config.source import OVERRIDE_PREFIX
from om_proxy.settings.config.validation_messages import find_setting

_SHORT_PREFIX = "OM_PROXY_"
# each is read by its name
_KNOWN_NAMES = frozenset(
    f"{_SHORT_PREFIX}{name}"
    for name in ("CONFIG", "ADMIN_TOKEN", "ADMIN_TOKEN_FILE", "OLD_CREDENTIAL", "NEW_CREDENTIAL")
)


def list_ignored_variables(env: Mapping[str, str], text: str) -> Iterator[str]:
    """List a warning for each variable that names a setting in another form than the one that is
    read. `text`: the file, which may use variables of any name.

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
