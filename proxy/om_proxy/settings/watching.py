"""The settings in force: a file that changes takes effect whole, or not at all."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from om_proxy.errors import ConfigError
from om_proxy.settings.admin_token import add_admin_token
from om_proxy.settings.loading import parse, read_file
from om_proxy.settings.snapshot import Settings

log = structlog.get_logger("settings")

# seconds after which the file is read without having been told: bind mounts do not always deliver
# events
FILE_CHECK_INTERVAL_S = 5.0
# Read at the start only, by `cli` and `App.start`.
RESTART_PREFIXES = (
    "server.",
    "storage.",
    "background.concurrency",
    "retention.generations",
    "telemetry.log",
)
LIVE_SETTINGS = ("server.admin_token",)  # one of these, but each request reads it


class WatchedSettings:
    """`current` is replaced whole and never changed: who reads it once per request sees one
    configuration throughout."""

    def __init__(
        self,
        settings: Settings,
        path: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        seen: Callable[[bool], None] = lambda taken: None,
        look: float = FILE_CHECK_INTERVAL_S,
    ) -> None:
        """`path`: the file to watch, else the one the settings came from. `env` as for `load`.

        `seen` is called after each change of the file with whether it was taken.
        """
        self.current = settings
        self._env = dict(add_admin_token(os.environ if env is None else env)[0])
        self._file = Path(path) if path else settings.file
        self._seen = seen
        self._look = look
        self._text = _read_if_possible(self._file)

    async def watch(self) -> None:
        """For ever: take over what the file says whenever it says something new. Returns at once
        where there is no file."""
        if self._file is None:
            return
        async for _ in _wait_for_changes(self._file.parent, self._look):
            text = await asyncio.to_thread(_read_if_possible, self._file)
            if text != self._text:
                self._text = text
                self._seen(self._take(self._file, text))

    def _take(self, file: Path, text: str | None) -> bool:
        try:
            # an editor that truncates before it writes must not put the built-in defaults in force
            # for a moment
            settings = parse(text, str(file), self._env) if text and text.strip() else None
        except ConfigError as exc:
            return self._refused(file, str(exc).splitlines())
        except Exception as exc:  # a file that breaks the parser itself must not end the watching
            return self._refused(file, [f"it cannot be read ({type(exc).__name__})"])
        if settings is None:
            return self._refused(file, ["the file is empty or cannot be read"])
        changed = list_changed_keys(self.current, settings)
        self.current = settings
        log.info("settings.reloaded", file=str(file), changed=changed)
        if late := [
            key for key in changed if key.startswith(RESTART_PREFIXES) and key not in LIVE_SETTINGS
        ]:
            log.warning("settings.restart_needed", changed=late)
        return True

    def _refused(self, file: Path, faults: list[str]) -> bool:
        log.error("settings.refused", file=str(file), faults=faults)
        return False


async def _wait_for_changes(folder: Path, every: float) -> AsyncIterator[None]:
    """Whenever something changed in this folder, and every so many seconds.

    The folder: editors and orchestrators replace files, and a watch on the file itself would die
    with the old one. watchfiles' own `awatch` does the same by way of anyio's event loop: 1.4 MB
    and 20 ms of a start.
    """
    from watchfiles import watch  # noqa: PLC0415 - 50 ms that `check`, `token` and `doctor` do without

    stop = threading.Event()
    events = watch(
        folder,
        debounce=100,
        rust_timeout=int(every * 1_000),
        yield_on_timeout=True,
        stop_event=stop,
        recursive=False,
    )
    thread = ThreadPoolExecutor(1, "settings")  # its own: it waits in there for ever
    try:
        while (
            await asyncio.get_running_loop().run_in_executor(thread, next, events, None) is not None
        ):
            yield
    finally:
        stop.set()  # ends the thread within 50 ms
        thread.shutdown(wait=False)


def list_changed_keys(before: Settings, after: Settings) -> list[str]:
    """The names, never the values, of what differs."""
    old, new = _flatten_values(before.model_dump()), _flatten_values(after.model_dump())
    return sorted(
        key
        for key in old.keys() | new.keys()
        if key not in old or key not in new or old[key] != new[key]
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
        for part, inside in parts
        for key, leaf in _flatten_values(inside, f"{name}.{part}".lstrip(".")).items()
    }


def _read_if_possible(file: Path | None) -> str | None:
    """None while it cannot be read."""
    try:
        return read_file(file) if file else None
    except ConfigError:
        return None
