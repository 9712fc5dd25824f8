"""Run a command of `om-proxy` in a process of its own that has its modules already.

A new interpreter imports them for most of a second of a core; here each process is forked from one
that has done so. Its folder, environment, streams and exit status are its own.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from om_proxy import cli

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

PRELOADED = ["om_proxy.storage.sqlite.store", __name__]


def run_warm(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str = "", timeout: float
) -> subprocess.CompletedProcess[str]:
    """Do what `subprocess.run` of `python -m om_proxy` does, with both streams captured as text."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_text(stdin)
        process = _context().Process(target=_run, args=(arguments, cwd, dict(env), streams))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        out, err = (stream.read_text() for stream in streams[1:])
        return subprocess.CompletedProcess(list(arguments), process.exitcode, out, err)


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    commands = [f"{cli.__name__}.{module.name}" for module in pkgutil.iter_modules(cli.__path__)]
    context.set_forkserver_preload([*commands, *PRELOADED])
    return context


def _run(arguments: Sequence[str], cwd: Path, env: dict[str, str], streams: list[Path]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, stream in enumerate(streams):
        opened = os.open(stream, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, "r" if number == 0 else "w", closefd=False)  # noqa: SIM115 - until the end
        for number in range(3)
    )
    sys.argv = ["om-proxy", *arguments]
    sys.exit(importlib.import_module("om_proxy.cli").main())
