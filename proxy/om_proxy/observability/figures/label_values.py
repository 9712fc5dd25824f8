"""Choose the label values that may be on the page: known models, and keyed labels of threads.

Clients name models and threads as they like, and a name may be a person's. So a model counts under
its name only if the price table or the configuration lists it. A thread counts under its label.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from om_proxy.memory.model import Key, resource_key
from om_proxy.settings.config import Settings

MAX_MODELS = 200
MAX_THREADS = 10_000
MAX_CACHED_MODELS = 1_024
WILDCARDS = frozenset("*?[")


class ModelLabels:
    """The label `model` of each model that a client or a server names. `find_listed_name` returns
    the name in the price table, or None."""

    def __init__(self, find_listed_name: Callable[[str], str | None], limit: LabelLimit) -> None:
        self._find_listed_name = find_listed_name
        self._limit = limit
        self._configured_names: frozenset[str] = frozenset()
        self._labels: dict[str, str] = {}

    def configure(self, names: frozenset[str]) -> None:
        """Take the names that the configuration lists, and choose every label anew."""
        self._configured_names = names
        self._labels.clear()

    def label(self, model: str | None) -> str:
        if not model:
            return FURTHER_VALUES_LABEL
        label = self._labels.get(model)
        return self._choose(model) if label is None else label

    def _choose(self, model: str) -> str:
        """Choose a label, and keep it unless it is `other` for this moment only."""
        name = model if model in self._configured_names else self._find_listed_name(model)
        is_admitted = self._limit.admit(name) if name is not None and name.isprintable() else False
        label = name if name is not None and is_admitted else FURTHER_VALUES_LABEL
        if is_admitted is not None:
            if len(self._labels) >= MAX_CACHED_MODELS:
                self._labels.clear()
            self._labels[model] = label
        return label


class ThreadLabels:
    """The labels `resource` and `thread`, as far as they are switched on. `label` returns the keyed
    label of a key."""

    def __init__(
        self,
        label: Callable[[Key], str],
        limit: LabelLimit,
        *,
        has_resources: bool,
        has_threads: bool,
    ) -> None:
        self._label = label
        self._limit = limit
        self._has_resources = has_resources
        self._has_threads = has_threads
        self.is_on = has_resources or has_threads

    def list_labels(self, key: Key) -> tuple[str, ...]:
        """Return names and values of the labels, in turn. Beyond the limit both are `other`."""
        values: dict[str, str] = {}
        if self._has_resources:
            values["resource"] = self._label(resource_key(key))
        if self._has_threads:
            values["thread"] = self._label(key)
        if not self._limit.admit(" ".join(values.values())):
            values = dict.fromkeys(values, FURTHER_VALUES_LABEL)
        return tuple(text for pair in values.items() for text in pair)


def list_plain_names(settings: Settings) -> frozenset[str]:
    """Return the names of models that the configuration lists without a wildcard."""
    names = [*settings.models, *(name for item in settings.upstream for name in item.match)]
    return frozenset(name for name in names if not WILDCARDS & set(name))


# Limit how many values a label has, over all processes of one server.
#
# Without a limit, clients that name many models would make the page grow without bound.


if sys.platform != "win32":  # there, one process serves and counts in its own memory
    import fcntl

FURTHER_VALUES_LABEL = "other"  # the value that stands for all further ones


class LabelLimit:
    """The values that a label may have. The processes of one server share them in `file`, one a
    line; without a file they are this process's own."""

    __slots__ = ("_file", "_limit", "_values")

    def __init__(self, limit: int, file: Path | None = None) -> None:
        self._limit = limit
        self._file = file
        self._values: set[str] = set()

    def admit(self, value: str) -> bool | None:
        """Return whether the label may have this value; None if that is not known now: ask again.
        It has no line break. Once admitted, a value stays."""
        if value in self._values:
            return True
        if len(self._values) >= self._limit:
            return False
        if self._file is None:
            self._values.add(value)
            return True
        try:
            self._admit_for_all(value, self._file)
        except OSError:  # another process writes now, or the folder is gone
            return None
        return value in self._values

    def _admit_for_all(self, value: str, file: Path) -> None:
        """Read what others were admitted, then add the value if there is room. It never waits: a
        stopped process may hold the lock."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            # a line without an end was cut off by a kill
            lines = content.decode(errors="replace").split("\n")
            self._values.update(lines[:-1])
            if value not in self._values and len(self._values) < self._limit:
                line_end = "\n" if lines[-1] else ""
                os.write(descriptor, f"{line_end}{value}\n".encode())
                self._values.add(value)
        finally:
            os.close(descriptor)
