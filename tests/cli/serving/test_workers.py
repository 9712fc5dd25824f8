"""Several worker processes on one port."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.command_line import CONFIG, ROOT, run_om_proxy

REQUIRED = {"OM_PROXY__STORAGE__REQUIRED": "true"}


def test_a_worker_that_cannot_start_is_a_failure(tmp_path: Path) -> None:
    """The status is 3, so that a supervisor starts the proxy again, even if only a worker fails."""
    (tmp_path / "sitecustomize.py").write_text(LATE)
    (tmp_path / "om.yaml").write_text(CONFIG)
    env = {
        "OM_PROXY__SERVER__PORT": "0",
        "OM_PROXY__SERVER__WORKERS": "2",
        "OM_PROXY__TELEMETRY__LOG": "off",
        **REQUIRED,
    }
    failed = run_om_proxy(
        "serve",
        "--config",
        "om.yaml",
        cwd=tmp_path,
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
        **env,
    )
    assert (failed.returncode, failed.stdout) == (3, "")
    assert set(failed.stderr.splitlines()) == {"om-proxy: storage.url: the disk is gone"}


LATE = """
import sys
if any("spawn_main" in argument for argument in sys.orig_argv):  # a worker
    import om_proxy.storage.sqlite.store
    from om_proxy.common.errors import StorageError

    async def gone(*_, **__):
        raise StorageError("storage.url: the disk is gone")

    import om_proxy.app.store_opening
    om_proxy.app.store_opening.open_store = gone
"""
