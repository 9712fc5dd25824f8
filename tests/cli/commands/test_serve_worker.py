"""`om-proxy serve --worker`, as a process of its own: what it answers, refuses, and its end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from om_proxy import __version__
from tests.cli.command_line import CONFIG, clean_environment, run_om_proxy, serve_in


@contextlib.contextmanager
def run_worker(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a worker on a free port, with the configuration in this folder. Yield its process and its
    base URL."""
    command = [
        sys.executable,
        "-m",
        "om_proxy",
        "serve",
        "--worker",
        "--config",
        "om.yaml",
        *options,
    ]
    with subprocess.Popen(
        command, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            first, _, health = process.stdout.readline().strip().partition(", health at ")
            assert first == f"om-proxy worker {__version__}"
            yield process, health.removesuffix("/readyz")
        finally:
            if process.poll() is None:
                process.kill()


def test_a_worker_beside_a_server(tmp_path: Path) -> None:
    """On one machine, on one file. It answers for its health and its figures, forwards nothing, and
    ends at a signal."""
    with (
        serve_in(tmp_path, f"{CONFIG}\nbackground: {{external: true}}\n"),
        run_worker(tmp_path, "--port", "0") as (process, base),
        httpx.Client(base_url=base, trust_env=False, timeout=60) as http,
    ):
        assert http.get("/healthz").json() == {"status": "ok"}
        while (ready := http.get("/readyz?verbose")).status_code == 503:
            pass  # bounded: it loads token ranks, in a second
        assert (ready.json()["status"], ready.json()["store"]["kind"]) == ("ok", "sqlite")
        assert http.get("/").json()["service"] == "om-proxy worker"
        assert "om_store_seconds" in http.get("/metrics").text
        for path in ("/v1/chat/completions", "/om/v1/threads", "/om/", "/v1/models"):
            refused = http.post(path, json={"model": "m", "messages": []})
            assert refused.status_code == 404, path
            assert "send requests to om-proxy serve" in refused.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=35) == 0


def test_a_store_that_cannot_be_shared(tmp_path: Path) -> None:
    """One line, which says what to do."""
    (tmp_path / "om.yaml").write_text(CONFIG.replace("om.db", ":memory:"))
    refused = run_om_proxy("serve", "--worker", "--config", "om.yaml", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (3, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("om-proxy: storage.url: a worker needs a file or a server")
