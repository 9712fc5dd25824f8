"""Watch the configuration file. A change takes effect as a whole, or not at all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from om_proxy.common.errors import ConfigError
from om_proxy.settings.config.loading import add_admin_token, parse, read_file
from om_proxy.settings.config.snapshot import Settings

logger = structlog.get_logger("settings")

# The file is read, and not its folder watched: a database in that folder would wake the watch at each
# write, and bind mounts do not always deliver events.
FILE_CHECK_INTERVAL_S = 1.0
FILE_SETTLING_S = 0.1  # its writer may be half-way
# settings that only `cli` and `App.start` read, at the start
RESTART_PREFIXES = (
    "server.",
    "storage.",
    "background.concurrency",
    "retention.generations",
    "telemetry.",
)
LIVE_SETTINGS = (
    "server.api",
    "server.admin_reads",
    "server.admin_token",
    "telemetry.metrics_token",
    "telemetry.webhooks",
)  # exceptions, which each request reads


class WatchedSettings:
    """The settings in force. `current` is replaced and never changed, so a request that reads it
    once sees one configuration until its end."""

    def __init__(
        self,
        settings: Settings,
        path: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        on_change: Callable[[bool], None] = lambda is_applied: None,
        check_interval_s: float = FILE_CHECK_INTERVAL_S,
    ) -> None:
        """Watch `path`, else the file of the settings. `env`: as for `load`.

        `on_change` is called after each change of the file, with whether the change was applied.
        """
        self.current = settings
        self._env = dict(add_admin_token(os.environ if env is None else env)[0])
        self._file = Path(path) if path else settings.file
        self._on_change = on_change
        self._check_interval_s = check_interval_s
        self._text = _read_if_possible(self._file)

    async def watch(self) -> None:
        """Apply each change of the file, until cancelled. Return at once if there is no file."""
        if self._file is None:
            return
        while True:
            await asyncio.sleep(self._check_interval_s)
            text = await asyncio.to_thread(_read_if_possible, self._file)
            if text == self._text:
                continue
            await asyncio.sleep(FILE_SETTLING_S)
            text = await asyncio.to_thread(_read_if_possible, self._file)
            if text != self._text:  # the same text may have been written again
                self._text = text
                self._on_change(self._apply_text(self._file, text))

    def catch_up(self) -> None:
        """Apply at once what has changed in the file since it was read."""
        text = _read_if_possible(self._file)
        if self._file is not None and text != self._text:
            self._text = text
            self._apply_text(self._file, text)

    def _apply_text(self, file: Path, text: str | None) -> bool:
        """Replace `current` by the settings of this text. Return whether they were applied; if not,
        the log says why."""
        try:
            # an empty file is refused: some editors truncate a file before they write it, and the
            # built-in defaults must not be in force for that moment
            settings = parse(text, str(file), self._env) if text and text.strip() else None
        except ConfigError as exc:
            return self._log_refusal(file, str(exc).splitlines())
        except Exception as exc:  # a file that breaks the parser itself must not end the watch
            return self._log_refusal(file, [f"it cannot be read ({type(exc).__name__})"])
        if settings is None:
            return self._log_refusal(file, ["the file is empty or cannot be read"])
        changed = list_changed_keys(self.current, settings)
        self.current = settings
        logger.info("settings.reloaded", file=str(file), changed=changed)
        if restart_keys := [key for key in changed if needs_a_restart(key)]:
            logger.warning("settings.restart_needed", changed=restart_keys)
        return True

    def _log_refusal(self, file: Path, faults: list[str]) -> bool:
        logger.error("settings.refused", file=str(file), faults=faults)
        return False


def needs_a_restart(key: str) -> bool:
    """Return whether a change of this setting waits for a restart. A part of a live setting, as
    `telemetry.webhooks.0.url`, is live too."""
    is_live = any(f"{key}.".startswith(f"{live}.") for live in LIVE_SETTINGS)
    return key.startswith(RESTART_PREFIXES) and not is_live


def list_changed_keys(before: Settings, after: Settings) -> list[str]:
    """List the names of the settings that differ, never their values."""
    old_values = _flatten_values(before.model_dump())
    new_values = _flatten_values(after.model_dump())
    keys = old_values.keys() | new_values.keys()
    missing = object()
    return sorted(
        key for key in keys if old_values.get(key, missing) != new_values.get(key, missing)
    )


def _flatten_values(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
        parts = list(enumerate(value))
    else:
        return {name: value}
    return {
        key: leaf
        for part, part_value in parts
        for key, leaf in _flatten_values(part_value, f"{name}.{part}".lstrip(".")).items()
    }


def _read_if_possible(file: Path | None) -> str | None:
    """Return the file's text; None while it cannot be read."""
    try:
        return read_file(file) if file else None
    except ConfigError:
        return None
