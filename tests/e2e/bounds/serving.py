"""A proxy as a process of its own, with limits and memory, in front of model servers of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.process import Process
from tests.support.free_port import free_port
from tests.support.upstream_server import UpstreamServer

STATUS = Path("/proc/self/status")
needs_proc = pytest.mark.skipif(
    not STATUS.exists(), reason="memory of a process is read from /proc, which Linux has"
)


class Proxy(Process):
    """`port` and, while it runs, its memory."""

    def __init__(self, config: Path, port: int) -> None:
        super().__init__(config, port)
        self.port = port

    def resident(self, what: str = "VmRSS") -> int:
        """MiB of memory, now or (`VmHWM`) at most since `forget_peak`."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        (found,) = (line.split()[1] for line in lines if line.startswith(f"{what}:"))
        return int(found) >> 10

    async def rests(self) -> None:
        """Until it has done nothing for a moment."""
        before = -1
        while (now := self._worked()) != before:
            before = now
            await asyncio.sleep(0.3)

    def _worked(self) -> int:
        """Hundredths of a second of CPU."""
        times = (
            Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        )
        return int(times[11]) + int(times[12])

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")


@asynccontextmanager
async def proxied(
    folder: Path, server: UpstreamServer, limits: str = "{}", more: str = ""
) -> AsyncIterator[Proxy]:
    """`limits`: that section of its configuration; `more`: others. Memory asks the same model
    server."""
    port = free_port()
    (folder / "om.yaml").write_text(
        f"""
        server: {{port: {port}}}
        limits: {limits}
        storage: {{url: "sqlite:///{folder}/om.db"}}
        telemetry: {{log: "off"}}
        {more or f'upstream: [{{base_url: "{server.base}"}}]'}
        """
    )
    proxy = Proxy(folder / "om.yaml", port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.kill()
