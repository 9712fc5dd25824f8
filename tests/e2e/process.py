"""The proxy as a process of its own, to be killed and started again on the same store."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import httpx


class Process:
    """`om-proxy serve` with a configuration file; `base` stays the same over restarts."""

    def __init__(
        self,
        config: Path,
        port: int,
        module: Sequence[str] = ("om_proxy",),
        options: Sequence[str] = (),
        log: Path | None = None,
    ) -> None:
        """`module`: what serves, with its own arguments before those of `om-proxy`. `options`:
        further ones of `serve`. `log`: the file that takes its log, over restarts; None: it goes
        where the log of the tests goes."""
        self.config = config
        self._options = options
        self._log = log
        self.module = module
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, within: float = 180.0) -> None:
        options = ("--config", str(self.config), *self._options)
        command = (sys.executable, "-m", *self.module, "serve", *options)
        await self._started(*command, within=within)
        assert self.alive, f"exited with {self._process.returncode if self._process else None}"

    async def _started(self, *command: str, within: float) -> None:
        """Returns when it serves, or has died."""
        with self._log.open("ab") if self._log else nullcontext() as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.DEVNULL, stderr=log
            )
        async with asyncio.timeout(within), httpx.AsyncClient(trust_env=False) as http:
            while self.alive:
                try:
                    if (await http.get(f"{self.base}/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                await asyncio.sleep(0.02)  # bounded by the time-out above

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def kill(self) -> None:
        """SIGKILL: nothing is told, nothing is finished."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def stop(self) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT, unless it has been killed since."""
        if self.alive:
            assert self._process is not None
            self._process.send_signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Return the exit status."""
        assert self._process is not None
        return await self._process.wait()

    async def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self.signal(signal.SIGTERM)
        return await self.wait()
