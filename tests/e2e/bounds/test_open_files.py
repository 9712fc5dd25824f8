"""The server takes as many connections as the system lets it have."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.e2e.bounds.serving import needs_proc, proxied
from tests.e2e.raw_upstream import script_completion
from tests.support.upstream_server import run_upstream_server


@needs_proc
async def test_open_files(tmp_path: Path) -> None:
    """Started with fewer, it raises them to the most."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with run_upstream_server(script_completion()) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, most), most))
        try:
            async with proxied(tmp_path, server) as proxy:
                allowed = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    assert allowed == (most, most)
