"""`om-proxy serve`, as a process of its own: its output and its end."""

from __future__ import annotations

import asyncio
import importlib
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from starlette.types import Message as AsgiMessage

from om_proxy import __version__
from om_proxy.app.app import App
from om_proxy.cli import main
from om_proxy.cli.commands.serve import hide_modules
from om_proxy.settings.config import Settings
from tests.cli.command_line import CONFIG, ROOT, clean_environment, is_ready, run_om_proxy, serve_in
from tests.support.long_forms import long_form

START = 60.0  # seconds on a very busy machine; the real figure is the benchmark's


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_serve(tmp_path: Path, number: signal.Signals) -> None:
    """It starts fast, prints its address and the memory settings in force, and ends cleanly at a
    signal."""
    started = time.monotonic()
    with serve_in(tmp_path) as (process, base):
        took = time.monotonic() - started
        assert is_ready(base)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    address, upstream, *memory, link = out.splitlines()
    assert address == f"om-proxy {__version__} on {base}/v1"
    assert upstream == (
        "upstream: upstream at http://127.0.0.1:9/v1, for every model (chat, responses, messages)"
    )
    assert memory == [
        "memory: on, scope thread, observer auto, reflector auto",
        "store: sqlite:///om.db",
        "tokens: messages are observed at 30000, every 6000 new ones; about 6000 stay raw; a request waits at 36000",
        "tokens: observations are reflected at 40000, prepared from 20000; a request waits at 48000",
        "memory model auto: on upstream, the request's own",
        f"dashboard: {base}/om/",
    ]
    assert link.startswith(f"sign in (once, within 10 minutes): {base}/om/#/sign-in/")
    assert "Traceback" not in err
    assert took < START


def test_ctrl_c_twice(tmp_path: Path) -> None:
    """The first one waits for a request under way and says so; the second one ends the process."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        text = CONFIG.replace(":9/", f":{silent.getsockname()[1]}/")
        with serve_in(tmp_path, text, PYTHONPATH=str(ROOT / "proxy")) as (process, base):
            host, _, port = base.removeprefix("http://").partition(":")
            with socket.create_connection((host, int(port))) as client:
                client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n")
                with silent.accept()[0]:
                    process.send_signal(signal.SIGINT)
                    assert process.stderr is not None
                    assert any("a second Ctrl-C cuts them off" in line for line in process.stderr)
                    process.send_signal(signal.SIGINT)
                    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("by", [pytest.param("environment", marks=long_form), "option"])
def test_serve_on_a_free_port(tmp_path: Path, by: str) -> None:
    """Port 0 takes a free port, and the printed address is the real one. An option overrides the
    environment."""
    options = ["--host", "127.0.0.1", "--port", "0"] if by == "option" else []
    command = [sys.executable, "-m", "om_proxy", "serve", *options]
    env = clean_environment() | {"OM_PROXY__SERVER__PORT": "1" if options else "0"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        base = process.stdout.readline().split()[-1].removesuffix("/v1")
        assert httpx.get(f"{base}/healthz", trust_env=False, timeout=60).status_code == 200
        process.terminate()
    assert process.returncode == 0


REQUIRED = {"OM_PROXY__STORAGE__REQUIRED": "true"}


# each log and each number of processes; the other two pairs with OM_TEST_LONG=all
STARTS = pytest.mark.parametrize(
    ("workers", "log"),
    [
        ("1", "console"),
        ("2", "off"),
        pytest.param("1", "off", marks=long_form),
        pytest.param("2", "console", marks=long_form),
    ],
)


WORKERS = pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=long_form)])


def read_start_failure(failed: subprocess.CompletedProcess[str]) -> str:
    """Return the one line on stderr that says why a start failed; its status is 3."""
    assert failed.returncode == 3, failed.stderr
    assert failed.stdout == "", "it announced an address that does not answer"
    (line,) = failed.stderr.splitlines()
    assert line.startswith("om-proxy: ")
    return line


@STARTS
def test_serve_twice_on_one_port(tmp_path: Path, workers: str, log: str) -> None:
    """A port in use ends the start; the error names port and setting. The first server serves
    on."""
    with serve_in(tmp_path) as (_, base):
        port = base.rpartition(":")[2]
        env = {
            "OM_PROXY__SERVER__PORT": port,
            "OM_PROXY__SERVER__WORKERS": workers,
            "OM_PROXY__TELEMETRY__LOG": log,
        }
        line = read_start_failure(run_om_proxy("serve", "--config", "om.yaml", cwd=tmp_path, **env))
        assert f"server.port: {port} of 127.0.0.1 is in use" in line
        assert is_ready(base)


@STARTS
def test_serve_without_a_usable_store(tmp_path: Path, workers: str, log: str) -> None:
    """A failed start names the setting, says what to do, and leaves no process."""
    (tmp_path / "om.yaml").write_text(CONFIG.replace("om.db", "om.yaml/om.db"))
    env = {
        "OM_PROXY__SERVER__PORT": "0",
        "OM_PROXY__SERVER__WORKERS": workers,
        "OM_PROXY__TELEMETRY__LOG": log,
        **REQUIRED,
    }
    line = read_start_failure(run_om_proxy("serve", "--config", "om.yaml", cwd=tmp_path, **env))
    assert "storage.url: cannot use om.yaml/om.db" in line
    assert "name a database of om-proxy or a new file" in line


def test_serve_with_a_file_that_is_no_database(tmp_path: Path) -> None:
    """SQLite's error comes with the setting's name."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    (tmp_path / "om.db").write_text("no database at all, but longer than the head of one " * 9)
    line = read_start_failure(
        run_om_proxy(
            "serve", "--config", "om.yaml", cwd=tmp_path, OM_PROXY__SERVER__PORT="0", **REQUIRED
        )
    )
    assert "storage.url: " in line
    assert "not a database" in line


def test_serve_on_an_open_address_needs_the_admin_token(tmp_path: Path) -> None:
    """`--host` is checked like the setting it overrides."""
    opened = run_om_proxy("serve", "--host", "0.0.0.0", cwd=tmp_path)  # noqa: S104 — it is refused
    assert (opened.returncode, opened.stdout) == (3, "")
    assert "needs server.admin_token" in opened.stderr


@WORKERS
def test_serve_makes_an_admin_token(tmp_path: Path, workers: str) -> None:
    """On an open address, with a file for it: the token opens the admin API, and only the file's
    path is printed."""
    file = tmp_path / "admin-token"
    open_address = {"OM_PROXY__SERVER__HOST": "0.0.0.0", "OM_PROXY__SERVER__WORKERS": workers}  # noqa: S104 — as in a container
    with serve_in(tmp_path, **open_address, OM_PROXY_ADMIN_TOKEN_FILE=str(file)) as (process, base):
        assert is_ready(base)
        token = file.read_text().strip()
        for sent, status in ((token, 200), ("another", 401)):
            headers = {"x-om-admin": sent}
            assert (
                httpx.get(
                    f"{base}/om/v1/threads", headers=headers, trust_env=False, timeout=60
                ).status_code
                == status
            )
        process.send_signal(signal.SIGTERM)
        said = "".join(process.communicate(timeout=60))
    assert f"admin token: in {file}\n" in said
    assert token not in said


@WORKERS
def test_serve_on_an_address_of_another_machine(tmp_path: Path, workers: str) -> None:
    """A foreign or invalid address is an error that names the setting."""
    for host in ("192.0.2.1", "no-such-host.invalid"):
        (tmp_path / "om.yaml").write_text(
            CONFIG
            + f"server: {{host: {host}, admin_token: 0123456789abcdef, workers: {workers}}}\n"
        )
        line = read_start_failure(run_om_proxy("serve", "--config", "om.yaml", cwd=tmp_path))
        assert f"server.host: {host} is not an address of this machine" in line


def test_a_start_that_fails_unforeseen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unforeseen exception is reported by class and place: its text may hold anything."""
    app = App(Settings())

    async def broken() -> None:
        raise ValueError("hush")

    sent: list[AsgiMessage] = []

    async def receive() -> AsgiMessage:
        return {"type": "lifespan.startup"}

    async def send(message: AsgiMessage) -> None:
        sent.append(message)

    monkeypatch.setattr(app, "start", broken)
    asyncio.run(app({"type": "lifespan"}, receive, send))
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert re.fullmatch(
        r"om-proxy: it cannot start: ValueError at test_serve.py:\d+\n", capsys.readouterr().err
    )


def test_serve_tells_no_secret(tmp_path: Path) -> None:
    """Output and log hold no credential."""
    text = (
        CONFIG.replace("/v1}", "/v1, api_key: sk-hush}")
        + "memory: {api_key: sk-hush}\nserver: {admin_token: sk-hush}\n"
    )
    with serve_in(tmp_path, text) as (process, base):
        headers = {"authorization": "Bearer sk-hush", "x-om-thread": "t"}
        body = {"model": "m", "messages": [{"role": "user", "content": "between us"}]}
        httpx.post(
            f"{base}/v1/chat/completions", json=body, headers=headers, trust_env=False, timeout=60
        )
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert '"event":"turn"' in err or "store" in out
    assert "hush" not in out + err
    assert "between us" not in out + err


def test_serve_with_a_faulty_file(tmp_path: Path) -> None:
    """The error names file, line and setting, without a traceback."""
    (tmp_path / "x.yaml").write_text("storage: {url: 'mysql://cache'}\n")
    ended = run_om_proxy("serve", "--config", "x.yaml", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert re.match(r"om-proxy: .*x\.yaml:1.*storage\.url", ended.stderr, flags=re.DOTALL)
    assert "Traceback" not in ended.stderr


def test_a_start_skips_unused_imports() -> None:
    """No unused library is imported, and it can be imported later. The imported objects are frozen,
    and the collector's thresholds are those of a server."""
    code = (
        "import gc, sys; from om_proxy.cli.commands.serve import SERVING_GC_THRESHOLDS, start_up_faster\n"
        "with start_up_faster(): import om_proxy.app.app, uvicorn\n"
        "found = {'rich', 'pygments', 'jwt', 'frozenlist._frozenlist', 'greenlet'} & set(sys.modules); assert not found, found\n"
        "assert gc.get_freeze_count() > 10_000 and gc.get_threshold() == SERVING_GC_THRESHOLDS\n"
        "import rich.console, frozenlist._frozenlist"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_an_imported_module_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a module that is not imported yet is hidden, and only within the `with`."""
    (tmp_path / "ornament.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with hide_modules(("json", "ornament")):
        assert importlib.import_module("json") is sys.modules["json"]
        with pytest.raises(ImportError):
            importlib.import_module("ornament")
    assert importlib.import_module("ornament")


def test_a_port_in_words_is_told_of_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Not of the variable that carries it."""
    with pytest.raises(SystemExit):
        main(["serve", "--port", "abc"])
    assert "argument --port: invalid int value: 'abc'" in capsys.readouterr().err
