"""The command, as a process of its own: what it prints, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from starlette.types import Message as AsgiMessage

from om_proxy import __version__
from om_proxy.app import create_app
from om_proxy.cli import main, spared
from om_proxy.edge.site import Site
from om_proxy.errors import Unauthorized
from om_proxy.memory import identity
from om_proxy.memory.identity import identify
from om_proxy.memory.model import Item, Key, Memory, Message
from om_proxy.settings import Settings, load
from om_proxy.storage.sqlite import SqliteStore
from om_proxy.upkeep import forget_thread
from tests.e2e.process import free_port

ROOT = Path(__file__).parents[1]
START = 60.0  # seconds on a very busy machine; the real figure is the benchmark's
CONFIG = 'upstream: [{base_url: "http://127.0.0.1:9/v1"}]\nstorage: {url: "sqlite:///om.db"}\n'


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OM_PROXY")}
    return clean | {"PYTHONPATH": str(ROOT)}


def om_proxy(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "om_proxy", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment() | env, capture_output=True, text=True, timeout=120, check=False
    )


@contextlib.contextmanager
def served(folder: Path, text: str = CONFIG, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`om-proxy serve` in this folder, once it listens, and its base URL."""
    port = free_port()
    (folder / "om.yaml").write_text(text)
    with subprocess.Popen(
        [sys.executable, "-m", "om_proxy", "serve", "--config", "om.yaml"],
        cwd=folder,
        env=environment() | env | {"OM_PROXY__SERVER__PORT": str(port)},
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
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)  # not listening yet; bounded by `until`
    pytest.fail(f"it does not listen; exit status {process.poll()}")


def is_ready(base: str, within: float = 30.0) -> bool:
    until = time.monotonic() + within
    while (answer := httpx.get(f"{base}/readyz", trust_env=False)).status_code == 503 and time.monotonic() < until:
        time.sleep(0.01)  # it loads token ranks
    return answer.json() == {"status": "ok"}


# ── serve ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_serve(tmp_path: Path, number: signal.Signals) -> None:
    """It starts soon, prints its address and the memory settings in force, and ends cleanly when told to."""
    started = time.monotonic()
    with served(tmp_path) as (process, base):
        took = time.monotonic() - started
        assert is_ready(base)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    address, upstream, memory = out.splitlines()
    assert address == f"om-proxy {__version__} on {base}/v1"
    assert upstream == "upstream: upstream at http://127.0.0.1:9/v1, for every model"
    assert memory == (
        "memory on: observed at 30000 tokens (buffered every 6000, waited for at 36000), reflected at 40000; "
        "model inherit; store sqlite:///om.db"
    )
    assert "Traceback" not in err
    assert took < START


def test_starting_spares_what_no_server_uses() -> None:
    """Nothing is imported for looks, nor for tokens that nobody signs; what stays is no garbage, and garbage is looked for as ever;
    later, all can be imported."""
    code = (
        "import gc, sys; from om_proxy.cli import starting; before = gc.get_threshold()\n"
        "with starting(): import om_proxy.app, uvicorn\n"
        "found = {'rich', 'pygments', 'jwt', 'frozenlist._frozenlist'} & set(sys.modules); assert not found, found\n"
        "assert gc.get_freeze_count() > 10_000 and gc.get_threshold() == before\n"
        "import rich.console, frozenlist._frozenlist"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_what_is_in_use_is_not_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what nobody has imported yet is absent, and only meanwhile."""
    (tmp_path / "ornament.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with spared(("json", "ornament")):
        assert importlib.import_module("json") is sys.modules["json"]
        with pytest.raises(ImportError):
            importlib.import_module("ornament")
    assert importlib.import_module("ornament")


@pytest.mark.parametrize("by", ["environment", "option"])
def test_serve_on_a_free_port(tmp_path: Path, by: str) -> None:
    """Port 0 takes a free one, and the address that is printed is the real one. An option comes before the environment."""
    options = ["--host", "127.0.0.1", "--port", "0"] if by == "option" else []
    command = [sys.executable, "-m", "om_proxy", "serve", *options]
    env = environment() | {"OM_PROXY__SERVER__PORT": "1" if options else "0"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base = process.stdout.readline().split()[-1].removesuffix("/v1")
        assert httpx.get(f"{base}/healthz", trust_env=False).status_code == 200
        process.terminate()
    assert process.returncode == 0


REQUIRED = {"OM_PROXY__STORAGE__REQUIRED": "true"}
LOGS = pytest.mark.parametrize("log", ["console", "off"])
WORKERS = pytest.mark.parametrize("workers", ["1", "2"])


def the_line(failed: subprocess.CompletedProcess[str]) -> str:
    """Why a start failed: status 3 for whoever would start it again, and all that was said is one line on stderr."""
    assert failed.returncode == 3, failed.stderr
    assert failed.stdout == "", "no address is announced that does not answer"
    (line,) = failed.stderr.splitlines()
    assert line.startswith("om-proxy: ")
    return line


@LOGS
@WORKERS
def test_serve_twice_on_one_port(tmp_path: Path, workers: str, log: str) -> None:
    """A port that is taken is a failure that ends, and names the port and the setting; who had it serves on."""
    with served(tmp_path) as (_, base):
        port = base.rpartition(":")[2]
        env = {"OM_PROXY__SERVER__PORT": port, "OM_PROXY__SERVER__WORKERS": workers, "OM_PROXY__TELEMETRY__LOG": log}
        line = the_line(om_proxy("serve", "--config", "om.yaml", cwd=tmp_path, **env))
        assert f"server.port: {port} of 127.0.0.1 is in use" in line
        assert is_ready(base)


@LOGS
@WORKERS
def test_serve_without_a_usable_store(tmp_path: Path, workers: str, log: str) -> None:
    """A start that fails says which setting it is and what to do, and ends with nothing left running."""
    (tmp_path / "om.yaml").write_text(CONFIG.replace("om.db", "om.yaml/om.db"))
    env = {
        "OM_PROXY__SERVER__PORT": "0",
        "OM_PROXY__SERVER__WORKERS": workers,
        "OM_PROXY__TELEMETRY__LOG": log,
        **REQUIRED,
    }
    line = the_line(om_proxy("serve", "--config", "om.yaml", cwd=tmp_path, **env))
    assert "storage.url: cannot use om.yaml/om.db" in line
    assert "name a file of ours or a new one" in line


def test_serve_with_a_file_that_is_no_database(tmp_path: Path) -> None:
    """SQLite's own words come with the setting's name too."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    (tmp_path / "om.db").write_text("no database at all, but longer than the head of one " * 9)
    line = the_line(om_proxy("serve", "--config", "om.yaml", cwd=tmp_path, OM_PROXY__SERVER__PORT="0", **REQUIRED))
    assert "storage.url: " in line
    assert "not a database" in line


def test_serve_on_an_open_address_needs_the_admin_token(tmp_path: Path) -> None:
    """`--host` is the setting itself: what the settings demand of an address holds for it, and a wrong port is told."""
    opened = om_proxy("serve", "--host", "0.0.0.0", cwd=tmp_path)  # noqa: S104 — it is refused
    assert (opened.returncode, opened.stdout) == (2, "")
    assert "needs server.admin_token" in opened.stderr
    wrong = om_proxy("serve", "--port", "eighty", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "server.port = eighty: must be a whole number" in wrong.stderr


@WORKERS
def test_serve_makes_an_admin_token(tmp_path: Path, workers: str) -> None:
    """On an open address, where a file is named: it opens the admin API, and its place is all that is printed of it."""
    file = tmp_path / "admin-token"
    open_address = {"OM_PROXY__SERVER__HOST": "0.0.0.0", "OM_PROXY__SERVER__WORKERS": workers}  # noqa: S104 — as in a container
    with served(tmp_path, **open_address, OM_PROXY_ADMIN_TOKEN_FILE=str(file)) as (process, base):
        assert is_ready(base)
        token = file.read_text().strip()
        for sent, status in ((token, 200), ("another", 401)):
            headers = {"x-om-admin": sent}
            assert httpx.get(f"{base}/om/v1/threads", headers=headers, trust_env=False).status_code == status
        process.send_signal(signal.SIGTERM)
        said = "".join(process.communicate(timeout=60))
    assert f"admin token: in {file}\n" in said
    assert token not in said


@WORKERS
def test_serve_on_an_address_of_another_machine(tmp_path: Path, workers: str) -> None:
    """An address that is not ours, or none at all, is told by the setting it stands in."""
    for host in ("192.0.2.1", "no-such-host.invalid"):
        (tmp_path / "om.yaml").write_text(CONFIG + f"server: {{host: {host}, admin_token: t, workers: {workers}}}\n")
        line = the_line(om_proxy("serve", "--config", "om.yaml", cwd=tmp_path))
        assert f"server.host: {host} is no address of this machine" in line


def test_a_start_that_fails_unforeseen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody thought of is told by its class and place: an exception's own words may hold anything."""
    app = create_app(Settings())

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
    assert re.fullmatch(r"om-proxy: it cannot start: ValueError at test_cli.py:\d+\n", capsys.readouterr().err)


def test_a_worker_that_cannot_start_is_a_failure(tmp_path: Path) -> None:
    """Also where only the workers find out, and later than the first start: whoever watches over us starts us again."""
    (tmp_path / "sitecustomize.py").write_text(LATE)
    (tmp_path / "om.yaml").write_text(CONFIG)
    env = {
        "OM_PROXY__SERVER__PORT": "0",
        "OM_PROXY__SERVER__WORKERS": "2",
        "OM_PROXY__TELEMETRY__LOG": "off",
        **REQUIRED,
    }
    failed = om_proxy("serve", "--config", "om.yaml", cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}", **env)
    assert (failed.returncode, failed.stdout) == (3, "")
    assert set(failed.stderr.splitlines()) == {"om-proxy: storage.url: the disk is gone"}


LATE = """
import sys
if any("spawn_main" in argument for argument in sys.orig_argv):  # a worker
    import om_proxy.storage.sqlite
    from om_proxy.errors import StorageError

    async def gone(*_, **__):
        raise StorageError("storage.url: the disk is gone")

    import om_proxy.app
    om_proxy.app.open_store = gone
"""


def test_serve_tells_no_secret(tmp_path: Path) -> None:
    """Neither what it prints nor what it logs holds a credential."""
    text = (
        CONFIG.replace("/v1}", "/v1, api_key: sk-hush}")
        + "memory: {api_key: sk-hush}\nserver: {admin_token: sk-hush}\n"
    )
    with served(tmp_path, text) as (process, base):
        headers = {"authorization": "Bearer sk-hush", "x-om-thread": "t"}
        body = {"model": "m", "messages": [{"role": "user", "content": "between us"}]}
        httpx.post(f"{base}/v1/chat/completions", json=body, headers=headers, trust_env=False)
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert '"event":"turn"' in err or "store" in out
    assert "hush" not in out + err
    assert "between us" not in out + err


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check(tmp_path: Path) -> None:
    """In a folder without any file: what the settings come to in a screen of lines, and last that all is well."""
    done = om_proxy("check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 12
    assert lines[0] == "settings: the built-in defaults; om-proxy init writes a file to edit"
    assert "upstream: openai at https://api.openai.com/v1, for every model" in lines
    assert any(line.startswith("tokens: messages are observed at 30000") for line in lines)
    assert lines[-1] == "nothing needs attention"


def test_check_all(tmp_path: Path) -> None:
    """With --all every setting stands there with where it comes from, and what needs attention still stands last."""
    done = om_proxy("check", "--all", cwd=tmp_path, OM_PROXY__STORAGE__PREFIX="other")
    lines = done.stdout.splitlines()
    assert "memory.observation.message_tokens = 30000  (default)" in lines
    assert lines[-1] == "warning: storage.prefix = other is accepted, but not in effect yet"


@pytest.mark.parametrize("arguments", [("check", "--all"), ("--help",), ("demo", "--help")], ids=" ".join)
def test_a_reader_that_leaves(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """`om-proxy check | head -1` ends with status 0 and without a traceback."""
    read, write = os.pipe()
    os.close(read)  # the reader has left before the first line
    command = [sys.executable, "-m", "om_proxy", *arguments]
    with open(write, "wb") as gone:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), stdout=gone, stderr=subprocess.PIPE, check=False, timeout=30
        )
    assert (done.returncode, done.stderr) == (0, b"")


# ── init ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_init_writes_the_annotated_file(tmp_path: Path) -> None:
    """What it writes is the project's own file, which `check` then reads by itself."""
    done = om_proxy("init", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    written = tmp_path / "config" / "om-proxy.yaml"
    assert written.read_text(encoding="utf-8") == (ROOT / "config" / "om-proxy.yaml").read_text(encoding="utf-8")
    assert om_proxy("check", cwd=tmp_path).stdout.startswith("settings: config/om-proxy.yaml\n")


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    """A file that somebody has edited stays, and the error says what to do."""
    (tmp_path / "mine.yaml").write_text("memory: false\n")
    done = om_proxy("init", "mine.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "mine.yaml exists already" in done.stderr
    assert (tmp_path / "mine.yaml").read_text() == "memory: false\n"


def test_init_where_nothing_may_be_written(tmp_path: Path) -> None:
    """A place that is no folder is told, in one line."""
    (tmp_path / "file").touch()
    done = om_proxy("init", "file/om-proxy.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert re.match(r"om-proxy: file/om-proxy\.yaml .*\n$", done.stderr)


# ── what check says ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_of_a_model(tmp_path: Path) -> None:
    """What holds for this model and resource, file and environment together."""
    (tmp_path / "x.yaml").write_text('models: {"gpt-4o*": {observation: {message_tokens: 20000}}}\n')
    env = {"OM_PROXY__MEMORY__TIMEZONE": "Asia/Tokyo", "OM_PROXY_CONFIG": "x.yaml"}
    done = om_proxy("check", "--all", "--model", "gpt-4o-mini", "--resource", "u", cwd=tmp_path, **env)
    assert 'memory.observation.message_tokens = 20000  (models["gpt-4o*"], x.yaml:1)' in done.stdout.splitlines()
    assert "memory.timezone = Asia/Tokyo  (env OM_PROXY__MEMORY__TIMEZONE)" in done.stdout.splitlines()


def test_check_warns_of_what_is_not_in_effect(tmp_path: Path) -> None:
    """Who sets something that does nothing yet is told so; for the defaults nobody is."""
    (tmp_path / "x.yaml").write_text(
        "memory: {retrieval: true}\nstorage: {prefix: other}\nmodels: {small: {retrieval: {max_steps: 3}}}\n"
    )
    warned = {
        model: warnings(om_proxy("check", "--config", "x.yaml", "--model", model, cwd=tmp_path))
        for model in ("a", "small")
    }
    assert warned["a"] == [
        f"{what} is accepted, but not in effect yet"
        for what in ("storage.prefix = other", "memory.retrieval.enabled = true")
    ]
    more = set(warned["small"]) - set(warned["a"])
    assert more == {"memory.retrieval.max_steps = 3 is accepted, but not in effect yet"}


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("warning: ") for line in done.stdout.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory:\n  observation: {message_tokens: many}\n", r"x\.yaml:2.*message_tokens.*many"),
        ("memmory: {}\n", r"x\.yaml:1.*memmory"),
        ("memory: [\n", r"x\.yaml"),
        ("server: {host: 0.0.0.0}\n", r"admin_token"),
        ("storage: {url: 'postgresql://db/om'}\n", r"x\.yaml:1.*storage\.url.*sqlite:///"),
        ("storage: {url: 'redis://cache'}\n", r"x\.yaml:1.*storage\.url.*sqlite:///"),
        ("storage: {encryption_key: k}\n", r"x\.yaml:1.*storage\.encryption_key.*take it out"),
        ("server: {workers: 2}\nstorage: {url: 'sqlite:///:memory:'}\n", r"x\.yaml:1.*server\.workers.*name a file"),
    ],
    ids=[
        *("wrong type", "unknown key", "no YAML", "open without a token", "PostgreSQL", "Redis", "encryption"),
        "many and no file",
    ],
)
def test_a_faulty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    """Status 2: the key, the value, the rule and the line."""
    (tmp_path / "x.yaml").write_text(text)
    assert main(["check", "--config", str(tmp_path / "x.yaml")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("om-proxy: ")
    assert re.search(said, err, flags=re.DOTALL)


def test_serve_with_a_faulty_file(tmp_path: Path) -> None:
    """The same, and no traceback."""
    (tmp_path / "x.yaml").write_text("storage: {url: 'redis://cache'}\n")
    done = om_proxy("serve", "--config", "x.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(r"om-proxy: .*x\.yaml:1.*storage\.url", done.stderr, flags=re.DOTALL)
    assert "Traceback" not in done.stderr


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that was named must be there, and the error is one line."""
    assert main(["check", "--config", str(tmp_path / "nowhere.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere.yaml" in line


KEY = "sk-proj-0hush1hush2hush3hush4hush5hush6"
MISPLACED = f"""
upstream: [{{name: {KEY}, base_url: "http://127.0.0.1:9/{KEY}/v1"}}]
auth: {{keys: [{{tenant: {KEY}, key: k}}]}}
side_requests: {{models: [{KEY}]}}
storage: {{url: "sqlite:///om.db?key={KEY}"}}
memory: {{model: {KEY}, observation: {{instruction: "{"x" * 60} {KEY}"}}}}
models: {{"{KEY}": {{scope: resource}}}}
"""


def test_check_repeats_no_secret(tmp_path: Path) -> None:
    """A key that stands in the wrong place goes no further than the file, and what is around it is still shown."""
    (tmp_path / "x.yaml").write_text(MISPLACED)
    done = om_proxy("check", "--all", "--config", "x.yaml", "--model", KEY, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hush" not in done.stdout
    assert "sk-proj" not in done.stdout
    assert re.search(r"^upstream\[0\]\.base_url = http://127\.0\.0\.1:9/\S.*/v1 ", done.stdout, flags=re.M)


def test_the_banner_repeats_no_secret(tmp_path: Path) -> None:
    """What a server prints at its start is kept in logs."""
    with served(tmp_path, MISPLACED) as (process, _):
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert "sqlite:///om.db" in out
    assert "hush" not in out + err
    assert "sk-proj" not in out + err


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, to be read by programs."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"{__version__}\n")


@pytest.mark.parametrize("arguments", [["fly"], ["serve", "--fast"]], ids=["unknown", "unknown option"])
def test_a_command_there_is_none_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and how it is used."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: om-proxy" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["nothing", "--help"])
def test_help_names_every_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Whoever types the command alone, or asks for help, learns what there is to run."""
    with contextlib.suppress(SystemExit):
        assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^\s+{command}\s+\S", out, flags=re.M) for command in ("serve", "check", "init", "demo"))


def test_help_says_where_it_listens(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names the options, the settings and the variables, and which of them comes first."""
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    out = capsys.readouterr().out
    assert all(
        name in out for name in ("--host", "--port", "server.port", "OM_PROXY__SERVER__HOST", "OM_PROXY__SERVER__PORT")
    )


def test_the_demo_has_options_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """`om-proxy demo --help` is the demo's."""
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--help"])
    assert ended.value.code == 0
    assert "--show-prompt" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "said"),
    [("sqlite:///gone.db", "gone.db"), ("sqlite:///:memory:", "no file"), ("sqlite:///folder", "folder")],
)
def test_doctor_looks_at_a_file_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    """In the wrong folder, or before the first start, it says so, makes no database that would have no trouble, and looks at the rest."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    upstream = '[{name: nowhere, base_url: "http://127.0.0.1:9/v1"}]'
    (tmp_path / "x.yaml").write_text(f'{{storage: {{url: "{url}"}}, upstream: {upstream}}}')
    assert main(["doctor", "--config", "x.yaml"]) == 1
    attention = capsys.readouterr().out.partition("needs attention:")[2].partition("works:")[0]
    assert "storage.url" in attention
    assert said in attention
    assert "nowhere" in attention
    assert {path.name for path in tmp_path.iterdir()} == {"x.yaml", "folder"}


# ── token ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SIGNING = "0123456789abcdef0123456789abcdef"
TWO = "keys: [{tenant: acme, key: sk-a}, {tenant: globex, key: sk-b}]"


def made(config: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["token", "--config", str(config), *options]) == 0
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("auth", "options", "tenant", "key"),
    [
        ("", [], "local", {}),
        ("keys: [{tenant: acme, key: sk-a}]", [], "acme", {"authorization": "Bearer sk-a"}),
        (TWO, ["--tenant", "globex"], "globex", {"authorization": "Bearer sk-b"}),
    ],
)
def test_a_token_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], auth: str, options: list[str], tenant: str, key: dict[str, str]
) -> None:
    """What the command makes names the caller to a server with the same file, for as long as it was told."""
    config = tmp_path / "om.yaml"
    config.write_text(f"auth: {{token_secret: {SIGNING}, token_required: true{', ' + auth if auth else ''}}}")
    text = made(config, capsys, "--resource", "ada", "--thread", "t", "--ttl", "5m", *options)
    sent = [(name.encode(), value.encode()) for name, value in {**key, "x-om-token": text}.items()]
    rules = Site.of(load(config)).identity
    assert identify(sent, rules, b"s", time.time() + 290).key == (tenant, "ada", "t")
    with pytest.raises(Unauthorized, match="ended"):
        identify(sent, rules, b"s", time.time() + 331)


@pytest.mark.parametrize(
    ("auth", "options", "said"),
    [
        ("{}", ["--resource", "ada"], "auth.token_secret is not set"),
        (f"{{token_secret: {SIGNING}}}", ["--resource", "a\tb"], "--resource and --thread must be"),
        (f"{{token_secret: {SIGNING}}}", ["--resource", "ada", "--thread", ""], "--resource and --thread must be"),
        (f"{{token_secret: {SIGNING}}}", ["--resource", "ada", "--ttl", "20"], "--ttl = 20: must be a duration"),
        (f"{{token_secret: {SIGNING}}}", ["--resource", "ada", "--tenant", "acme"], "there are none"),
        (f"{{token_secret: {SIGNING}, {TWO}}}", ["--resource", "ada"], "must be one of auth.keys: acme, globex"),
    ],
)
def test_no_token_that_would_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], auth: str, options: list[str], said: str
) -> None:
    """What could never be taken is not made; the error says what to do."""
    config = tmp_path / "om.yaml"
    config.write_text(f"auth: {auth}")
    assert main(["token", "--config", str(config), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert SIGNING not in captured.err


MAPPED = """
import ctypes, sys
from om_proxy.host import keep_freed_memory

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks mapped rest1 rest2 rest3 rest4 rest5 rest6".split()]

look = ctypes.CDLL(None).mallinfo2
look.restype = Info
set_ = keep_freed_memory()
before = look().mapped
block = bytearray(4 << 20)
print(set_, look().mapped - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another allocator than glibc's"
)
@pytest.mark.parametrize(("more", "said"), [({}, "True 0"), ({"MALLOC_ARENA_MAX": "9"}, "False 1")])
def test_large_blocks_come_from_the_heap(more: dict[str, str], said: str) -> None:
    """Where nobody has decided otherwise, a body is no mapping of its own, whose pages are new each time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | more
    run = subprocess.run([sys.executable, "-c", MAPPED], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == said


# ── forget ──


async def kept(path: Path, *keys: Key) -> None:
    store = await SqliteStore.open(path)
    for key in keys:
        item = Item(b'{"role":"user","content":"canary"}', "user", bytes(16))
        said = Message(1, item, bytes(16), 3, 1.7e9)
        await store.commit(Memory(key=key), Memory(key=key, tail=(said,), next_seq=2, title="Ways\x1b[31m home"))
    await store.close()


def left(path: Path) -> int:
    return sum(file.read_bytes().count(b"canary") for file in path.parent.glob("om.db*"))


def test_forget(tmp_path: Path) -> None:
    """The thread is shown and gone, its bytes too; what a title may hold moves no cursor."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    asyncio.run(kept(tmp_path / "om.db", Key("local", "t", "t"), Key("local", "u", "u")))
    done = om_proxy("forget", "t", "--config", "om.yaml", "--yes", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith("thread t of resource t, tenant local: 1 messages, last used 20")
    assert first.endswith("Ways\\u001b[31m home")
    assert second == "forgotten: 1 messages, 0 notes in 0 logs"
    assert left(tmp_path / "om.db") == 1
    again = om_proxy("forget", "t", "--config", "om.yaml", "--yes", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (4, "")
    assert again.stderr == "om-proxy: there is no memory of a thread t here\n"


def test_forget_by_a_name_in_any_script(tmp_path: Path) -> None:
    """Typed as it reads, in whichever spelling of its letters the keyboard gives."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    asyncio.run(kept(tmp_path / "om.db", Key("local", "Zoë", "Küche 対話 100%")))
    name = ("forget", "Ku\u0308che 対話 100%", "--resource", "Zoe\u0308")
    assert om_proxy(*name, "--config", "om.yaml", "--yes", cwd=tmp_path).returncode == 0
    assert left(tmp_path / "om.db") == 0


def test_forget_wants_to_know_which(tmp_path: Path) -> None:
    """Of several threads of one name none is guessed; each can be named."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    keys = [Key("a", "r", "t"), Key("a", "s", "t"), Key("b", "r", "t")]
    asyncio.run(kept(tmp_path / "om.db", *keys))
    forget = ("forget", "t", "--config", "om.yaml", "--yes")
    for more in ((), ("--resource", "r"), ("--tenant", "a")):
        done = om_proxy(*forget, *more, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == (3 if more else 4)
    assert om_proxy(*forget, "--tenant", "c", cwd=tmp_path).returncode == 4
    assert left(tmp_path / "om.db") == 3
    assert om_proxy(*forget, "--tenant", "a", "--resource", "s", cwd=tmp_path).returncode == 0
    assert om_proxy(*forget, "--tenant", "a", cwd=tmp_path).returncode == 0
    assert om_proxy(*forget, cwd=tmp_path).returncode == 0
    assert left(tmp_path / "om.db") == 0


def test_forget_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody can answer it says what to add; else only a yes is a yes."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    asyncio.run(kept(tmp_path / "om.db", Key("local", "t", "t")))
    monkeypatch.chdir(tmp_path)
    forget = ["forget", "t", "--config", "om.yaml"]
    alone = om_proxy(*forget, cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "--yes" in alone.stderr
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", Mock(side_effect=[EOFError, "", "n", "Yes "]))
    for status in (1, 1, 1, 0):
        assert main(forget) == status
    assert "nothing was forgotten" in capsys.readouterr().out
    assert left(tmp_path / "om.db") == 0


def test_forget_beside_a_running_server(tmp_path: Path) -> None:
    """The server sees at once that the thread is gone, and whose snapshot is in the way is waited for."""
    with served(tmp_path) as (process, base):
        asyncio.run(kept(tmp_path / "om.db", Key("local", "t", "t")))
        assert httpx.get(f"{base}/om/v1/threads/t", trust_env=False).status_code == 200
        with contextlib.closing(sqlite3.connect(tmp_path / "om.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM thread").fetchall()
            command = [sys.executable, "-m", "om_proxy", "forget", "t", "--config", "om.yaml", "--yes"]
            forgetting = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
            assert forgetting.stdout
            told = [forgetting.stdout.readline() for _ in range(3)]
            assert "another program is reading them" in told[2]
            assert left(tmp_path / "om.db") > 0
            assert httpx.get(f"{base}/om/v1/threads/t", trust_env=False).status_code == 404
        assert forgetting.communicate(timeout=60)[0] == "its bytes are gone\n"
        assert forgetting.returncode == 0
        assert left(tmp_path / "om.db") == 0
        assert process.poll() is None


async def test_forget_waits_for_a_reader_no_longer_than_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that never lets go is told of; the rows are gone all the same."""
    await kept(tmp_path / "om.db", Key("local", "t", "t"))
    store = await SqliteStore.open(tmp_path / "om.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "om.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM thread").fetchall()
        assert await forget_thread(store, "t", None, None, agrees=lambda: True, erase_wait=0.01) == 0
        assert "its bytes are still there" in capsys.readouterr().out
        assert await store.threads(None) == ()
        await store.close()


# ── rekey-tenant ──

SECRETS = ("sk-hush-old", "sk-hush-new")


async def kept_by(path: Path, credential: str, *threads: str) -> str:
    """Threads of this API key; its tenant."""
    store = await SqliteStore.open(path)
    headers = [(b"authorization", b"Bearer " + credential.encode())]
    tenant = identity.tenant(headers, identity.Rules(), await store.secret())
    await store.close()
    assert tenant is not None
    await kept(path, *(Key(tenant, thread, thread) for thread in threads))
    return tenant


def rekey(folder: Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "om_proxy", "rekey-tenant", "--config", "om.yaml"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment() | env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "hush" not in done.stdout + done.stderr
    return done


def tenants(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return {tenant for (tenant,) in database.execute("SELECT tenant FROM thread")}


@pytest.mark.parametrize("by", ["environment", "standard input", "both"])
def test_rekey_tenant(tmp_path: Path, by: str) -> None:
    """Both keys come from the environment or standard input; what moved is counted."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    old = asyncio.run(kept_by(tmp_path / "om.db", SECRETS[0], "t", "u"))
    env = {f"OM_PROXY_{which}_CREDENTIAL": key for which, key in zip(("OLD", "NEW"), SECRETS, strict=True)}
    given = {
        "environment": ("", env),
        "standard input": ("\n".join(SECRETS), {}),
        "both": (f"{SECRETS[1]}\n", {"OM_PROXY_OLD_CREDENTIAL": SECRETS[0]}),
    }
    stdin, variables = given[by]
    done = rekey(tmp_path, stdin, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    (new,) = tenants(tmp_path / "om.db")
    assert new != old
    assert done.stdout == f"moved: 2 threads with 2 messages, to tenant {new}\n"
    again = rekey(tmp_path, stdin, **variables)
    assert (again.returncode, again.stdout) == (4, "")
    assert "no memory of the old credential" in again.stderr


@pytest.mark.parametrize(
    ("stdin", "told"),
    [("", "is empty"), (SECRETS[0], "is empty"), (f"{SECRETS[0]}\n{SECRETS[0]}\n", "are the same")],
    ids=["none", "one", "one twice"],
)
def test_rekey_tenant_needs_two_keys(tmp_path: Path, stdin: str, told: str) -> None:
    (tmp_path / "om.yaml").write_text(CONFIG)
    asyncio.run(kept_by(tmp_path / "om.db", SECRETS[0], "t"))
    done = rekey(tmp_path, stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_rekey_tenant_takes_no_key_as_an_argument(tmp_path: Path) -> None:
    """Arguments are shown to every user of the machine."""
    done = om_proxy("rekey-tenant", *SECRETS, cwd=tmp_path)
    assert done.returncode == 2
    assert "unrecognized arguments" in done.stderr


def test_rekey_tenant_to_a_key_of_ours(tmp_path: Path) -> None:
    """Who sets `auth.keys` later takes the memory along, to the tenant the key stands for; any other key is refused."""
    (tmp_path / "om.yaml").write_text(CONFIG + f"auth: {{keys: [{{tenant: acme, key: {SECRETS[1]}}}]}}\n")
    asyncio.run(kept_by(tmp_path / "om.db", SECRETS[0], "t"))
    other = rekey(tmp_path, f"{SECRETS[0]}\nsk-hush-else\n")
    assert (other.returncode, other.stdout) == (2, "")
    assert "auth.keys" in other.stderr
    assert rekey(tmp_path, "\n".join(SECRETS)).returncode == 0
    assert tenants(tmp_path / "om.db") == {"acme"}
