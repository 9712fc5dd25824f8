"""A package that is not installed, though it is."""

from __future__ import annotations

import sys

import pytest


def hide_package(monkeypatch: pytest.MonkeyPatch, package: str, *importers: str) -> None:
    """Let imports of the package fail until the test ends, and let these modules of ours import it
    again. An import also sets a name in the module above: these are restored, too, so that later
    tests find by it what `sys.modules` holds."""
    hidden = tuple(f"{name}." for name in (package, *importers))
    modules = dict(sys.modules)
    for name, module in modules.items():
        if f"{name}.".startswith(hidden):
            above, _, own_name = name.rpartition(".")
            if above and hasattr(modules.get(above), own_name):
                monkeypatch.setattr(modules[above], own_name, module)
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
