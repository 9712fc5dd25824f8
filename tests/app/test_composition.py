"""Tracing costs nothing while it is off, and says what it lacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from om_proxy.app.composition import open_tracing
from om_proxy.common.errors import ConfigError
from tests.support.missing_package import hide_package


def test_off_imports_nothing() -> None:
    code = (
        "import sys, om_proxy.app.app\n"
        "from om_proxy.app.composition import open_tracing\n"
        "assert open_tracing(False) is None\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is on must not do nothing in silence."""
    hide_package(monkeypatch, "opentelemetry.sdk.trace", "om_proxy.observability.spans")
    with pytest.raises(ConfigError, match=r"observational-memory-proxy\[otel\]"):
        open_tracing(True)
