"""Run `om-proxy` as a process of its own, for the tests of its commands."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.warm_process import run_warm
from tests.support.free_port import free_port

ROOT = Path(__file__).parents[2]


CONFIG = 'upstream: [{base_url: "http://127.0.0.1:9/v1"}]\nstorage: {url: "sqlite:///om.db"}\n'


def clean_environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OM_PROXY")}
    return clean | {"PYTHONPATH": os.pathsep.join((str(ROOT / "proxy"), str(ROOT)))}


def run_om_proxy(
    *arguments: str, cwd: Path, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. A server starts as it does for its users, with a new interpreter."""
    environment = clean_environment() | env
    if arguments and arguments[0] != "serve":
        return run_warm(arguments, cwd=cwd, env=environment, stdin=stdin, timeout=120)
    return subprocess.run(
        [sys.executable, "-m", "om_proxy", *arguments],
        cwd=cwd,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextlib.contextmanager
def serve_in(
    folder: Path, text: str = CONFIG, **env: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `om-proxy serve` in this folder. Yield the process once it listens, and its base URL."""
    port = free_port()
    (folder / "om.yaml").write_text(text)
    with subprocess.Popen(
        [sys.executable, "-m", "om_proxy", "serve", "--config", "om.yaml"],
        cwd=folder,
        env=clean_environment() | env | {"OM_PROXY__SERVER__PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_listening(process, port)
            yield process, f"http://127.0.0.1:{port}"
        finally:
            if process.poll() is None:
                process.kill()


def wait_listening(process: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + 180
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)  # not listening yet; bounded by `until`
    pytest.fail(f"it does not listen; exit status {process.poll()}")


def is_ready(base: str, within: float = 30.0) -> bool:
    until = time.monotonic() + within
    while (
        answer := httpx.get(f"{base}/readyz", trust_env=False, timeout=60)
    ).status_code == 503 and time.monotonic() < until:
        time.sleep(0.01)  # it loads token ranks
    return answer.json() == {"status": "ok"}


MISPLACED_KEY = "sk-proj-0hush1hush2hush3hush4hush5hush6"


# a key in every wrong place
MISPLACED_KEY_CONFIG = f"""
upstream: [{{name: {MISPLACED_KEY}, base_url: "http://127.0.0.1:9/{MISPLACED_KEY}/v1"}}]
auth: {{keys: [{{tenant: {MISPLACED_KEY}, key: k}}]}}
side_requests: {{models: [{MISPLACED_KEY}]}}
storage: {{url: "sqlite:///om.db?key={MISPLACED_KEY}"}}
memory: {{model: {MISPLACED_KEY}, observation: {{instruction: "{"x" * 60} {MISPLACED_KEY}"}}}}
models: {{"{MISPLACED_KEY}": {{scope: resource}}}}
"""
