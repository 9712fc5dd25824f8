"""Several worker processes on one port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.command_line import (
    CONFIG,
    ROOT,
    clean_environment,
    is_ready,
    run_om_proxy,
    serve_in,
)
from tests.e2e.test_workers import children, needs_proc

REQUIRED = {"OM_PROXY__STORAGE__REQUIRED": "true"}


def test_a_worker_that_cannot_start_is_a_failure(tmp_path: Path) -> None:
    """The status is 3, so that a supervisor starts the proxy again, even if only one of them
    fails."""
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
import om_proxy.app.store_opening as opening
from om_proxy.common.errors import StorageError

open_store = opening.open_store

async def open_once(*values, **options):
    try:
        open("opened", "x").close()
    except FileExistsError:
        raise StorageError("storage.url: the disk is gone") from None
    return await open_store(*values, **options)

opening.open_store = open_once
"""


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_what_is_loaded_before_a_fork(tmp_path: Path, store: str) -> None:
    """No thread and no open file is left, ranks and the store's modules are loaded, and litellm is
    not."""
    urls = {"postgres": "postgresql://h/d", "redis": "redis://h", "sqlite": "sqlite:///om.db"}
    loaded = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD, urls[store], store],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (loaded.returncode, loaded.stderr) == (0, "")


LOAD = """
import os, sys, threading
from om_proxy.agents.models.encodings import is_loaded
from om_proxy.cli.workers import load_shared
from om_proxy.settings.config import Settings

url, store = sys.argv[1:]
files = set(os.listdir("/dev/fd"))
settings = Settings.model_validate(
    {"storage": {"url": url}}
)
load_shared(settings)
assert threading.enumerate() == [threading.main_thread()]
assert not os.path.exists("/proc/self/task") or len(os.listdir("/proc/self/task")) == 1
assert set(os.listdir("/dev/fd")) == files
assert is_loaded("")
assert f"om_proxy.storage.{store}.store" in sys.modules
assert "litellm" not in sys.modules
"""


@needs_proc
def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    """It is killed, and can tell them nothing."""
    with serve_workers(tmp_path) as (process, _, workers):
        process.kill()
        wait_until(lambda: not any(map(is_running, workers)))


@needs_proc
def test_a_worker_that_stands_still_is_replaced(tmp_path: Path) -> None:
    """Its event loop says nothing for MAX_SILENCE_S, which is short here. The server ends cleanly
    all the same."""
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    with serve_workers(tmp_path, PYTHONPATH=path) as (process, base, workers):
        os.kill(min(workers), signal.SIGSTOP)
        wait_until(lambda: len(children(process.pid) - {min(workers)}) == 2)
        assert is_ready(base)
        process.terminate()
        assert process.wait(timeout=60) == 0


@needs_proc
def test_workers_share_the_link_and_its_sessions(tmp_path: Path) -> None:
    """Of several workers that are asked, one takes the link. The session counts with all."""
    with serve_workers(tmp_path) as (process, base, _):
        assert process.stdout is not None
        link = next(line for line in process.stdout if "/sign-in/" in line)
        token = link.strip().rpartition("/")[2]
        # each request makes a connection, which any worker takes
        opened = [httpx.post(f"{base}/om/session", content=token) for _ in range(10)]
        assert sorted(answer.status_code for answer in opened) == [204] + [401] * 9
        (taken,) = (answer.headers for answer in opened if answer.status_code == 204)
        cookie = taken["set-cookie"].partition(";")[0]
        headers = {"cookie": cookie, "x-om-session": taken["x-om-session"]}
        asked = [httpx.get(f"{base}/om/v1/config", headers=headers) for _ in range(10)]
        assert [answer.json()["is_complete"] for answer in asked] == [True] * 10


IMPATIENT = """
import om_proxy.cli.workers as workers
workers.BEAT_INTERVAL_S, workers.MAX_SILENCE_S = 0.05, 3.0
"""


@needs_proc
def test_hanging_up_replaces_all_workers(tmp_path: Path) -> None:
    """One after the other, without a refused request. The new ones read the file anew, also what
    needs a restart. If they cannot start, the old ones stay."""
    with serve_workers(tmp_path) as (process, base, workers):
        file = tmp_path / "om.yaml"
        file.write_text(CONFIG.replace("om.db", "other.db"))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: is_alive(base) and not children(process.pid) & workers)
        newer = children(process.pid)
        assert (tmp_path / "other.db").exists()
        file.write_text(CONFIG.replace('om.db"', 'om.yaml/om.db", required: true'))
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert any("storage.url: cannot use" in line for line in process.stderr)
        wait_until(lambda: is_alive(base) and children(process.pid) == newer)


@needs_proc
def test_more_and_fewer_workers(tmp_path: Path) -> None:
    """SIGTTIN adds one, SIGTTOU takes one away, but not the last one. None of it warns, nor does
    the end."""
    with serve_workers(tmp_path, PYTHONWARNINGS="default") as (process, base, _):
        steps = ((signal.SIGTTIN, 3), (signal.SIGTTOU, 2), (signal.SIGTTOU, 1), (signal.SIGTTOU, 1))
        for number, count in steps:
            process.send_signal(number)
            wait_until(lambda count=count: len(children(process.pid)) == count)
        assert is_alive(base)
        process.terminate()
        assert "Warning" not in process.communicate(timeout=60)[1]


@contextmanager
def serve_workers(
    folder: Path, **env: str
) -> Iterator[tuple[subprocess.Popen[str], str, set[int]]]:
    """Run a server with two workers. Yield its process, its base URL and the workers, which serve."""
    with serve_in(folder, OM_PROXY__SERVER__WORKERS="2", **env) as (process, base):
        assert process.stdout is not None
        process.stdout.readline()  # of the banner, which comes once all serve
        yield process, base, children(process.pid)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_alive(base: str) -> bool:
    """Ask on a connection of its own. Raise TransportError if it is refused."""
    return httpx.get(f"{base}/healthz", trust_env=False, timeout=60).status_code == 200


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
