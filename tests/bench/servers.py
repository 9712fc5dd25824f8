"""The servers of a speed run: the fake model server, the memory model, and the proxies that are
measured. Loopback only."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.loads import EVENTS_OF_A_STREAM

PORTS = (9000, 9001, 9100, 9110, 9120, 9170, 9180, 9190, 9200)
(
    UPSTREAM_PORT,
    OBSERVER_PORT,
    OM_PORT,
    FLOOR_PORT,
    BEFORE_PORT,
    NGINX_PORT,
    LITELLM_PORT,
    HEADROOM_PORT,
    PORTKEY_PORT,
) = PORTS
MODEL_SERVER = f"http://127.0.0.1:{UPSTREAM_PORT}"
NEVER = 10**9  # tokens: no notes are ever due
MEMORY_STATES = ("om_off", "om_raw", "om_applied")
DISABLED = "om_disabled"  # `memory.enabled: false`
WORKERS = "_workers"  # behind a state, with their number behind it
RECALL = "_recall"  # behind a state: the tool for look-ups is on, and no model calls it
AT_ONCE = 100  # tokens: every history of the cells is longer
SETTLE_S = 2.0  # until the last worker is ready, too
START_TIMEOUT_S = 180.0  # under callgrind, on a busy machine
LOAD_CORE, TARGET_CORE = "0", "1"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BEFORE = "@before"  # behind a target's name: the same state of another checkout


@dataclass(frozen=True, slots=True)
class Target:
    """`command`: None for no proxy at all. `headers`: of each request; #### stands for the thread's
    number."""

    name: str
    command: tuple[str, ...] | None
    port: int
    headers: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_threads(self) -> bool:
        return any(header.startswith("x-om-thread") for header in self.headers)


def describe_target(name: str, folder: Path, bench: Path, *, before: str | None = None) -> Target:
    """`before`: the om-proxy command of the other checkout. Raises ValueError for a name that is
    none."""
    state, mark, _ = name.partition(BEFORE)
    has_recall = state.endswith(RECALL)
    state, _, workers = state.removesuffix(RECALL).partition(WORKERS)
    if state in (*MEMORY_STATES, DISABLED):
        command, port = (
            (before or "", BEFORE_PORT)
            if mark
            else (os.environ.get("OM_PROXY", "om-proxy"), OM_PORT)
        )
        config = folder / f"{name}.yaml"
        config.write_text(
            configure_om(
                folder / f"{name}.db",
                port,
                AT_ONCE if state == "om_applied" else NEVER,
                has_recall=has_recall,
                workers=int(workers or 1),
            )
        )
        is_without = state in ("om_off", DISABLED)
        headers = () if is_without else ("x-om-thread: bench-####", "x-om-resource: bench")
        setting = {"OM_PROXY__MEMORY__ENABLED": str(state != DISABLED).lower()}
        return Target(name, (command, "serve", "--config", str(config)), port, headers, setting)
    return describe_other(name, folder, bench)


def describe_other(name: str, folder: Path, bench: Path) -> Target:
    """A target that is not ours. Raises ValueError for a name that is none."""
    command: tuple[str, ...]
    headers: tuple[str, ...] = ()
    serve = ("--host", "127.0.0.1", "--port")
    match name:
        case "direct":
            return Target(name, None, UPSTREAM_PORT)
        case "nginx":
            config = folder / "nginx.conf"
            config.write_text((bench / "nginx.conf.in").read_text().replace("@DIR@", str(folder)))
            port = NGINX_PORT
            command = ("nginx", "-c", str(config))
        case "floor_aiohttp" | "floor_httpx":
            port = FLOOR_PORT
            python = os.environ.get("PY_FLOOR", sys.executable)
            command = (python, "-m", "uvicorn", "floor:app", *serve, str(port), "--loop", "uvloop")
            command += ("--http", "httptools", "--no-access-log", "--log-level", "warning")
        case "litellm":
            port = LITELLM_PORT
            config = bench / "litellm.yaml"
            command = (os.environ.get("LITELLM", name), "--config", str(config), *serve, str(port))
        case "headroom":  # its default answers 60 requests a minute
            port = HEADROOM_PORT
            command = (os.environ.get("HEADROOM", name), "proxy", *serve, str(port))
            command += ("--no-rate-limit", "--openai-api-url", MODEL_SERVER)
        case "portkey":
            port = PORTKEY_PORT
            command = ("node", os.environ.get("PORTKEY", ""), f"--port={port}", "--headless")
            headers = ("x-portkey-provider: openai", f"x-portkey-custom-host: {MODEL_SERVER}/v1")
        case _:
            raise ValueError(f"no such target: {name}")
    return Target(name, command, port, headers, {"FLOOR": name.removeprefix("floor_")})


def configure_om(
    database: Path, port: int, message_tokens: int, *, has_recall: bool = False, workers: int = 1
) -> str:
    """JSON, which is YAML."""
    upstream = {
        "name": "fake",
        "match": ["*"],
        "base_url": f"{MODEL_SERVER}/v1",
        "layout": "blocks",
    }
    observation = {"message_tokens": message_tokens, "buffer_tokens": False}
    notes = {
        "model": "openai/observer",
        "api_base": f"http://127.0.0.1:{OBSERVER_PORT}/v1",
        "api_key": "sk-bench",
    }
    return json.dumps(
        {
            "server": {"host": "127.0.0.1", "port": port, "workers": workers},
            "upstream": [upstream],
            "storage": {"url": f"sqlite:///{database}"},
            "memory": {**notes, "observation": observation, "retrieval": has_recall},
        }
    )


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Running:
    """`first_200_s`: from its start to five answers; None where nothing was started."""

    target: Target
    pid: int
    first_200_s: float | None
    idle_mb: float


@contextmanager
def serve_models(bench: Path, folder: Path, events: int = EVENTS_OF_A_STREAM) -> Iterator[int]:
    """The fake model server on the load's core, and the memory model; yields the first one's
    process id."""
    upstream = subprocess.Popen(
        ["taskset", "-c", LOAD_CORE, folder / "upstream", f"{UPSTREAM_PORT}:{events}:0"]
    )
    observer = subprocess.Popen([sys.executable, bench / "observer.py", str(OBSERVER_PORT)])
    try:
        for port in (UPSTREAM_PORT, OBSERVER_PORT):
            count_answers(port, (), b'{"model": "m", "messages": []}', START_TIMEOUT_S)
        yield upstream.pid
    finally:
        upstream.terminate()
        observer.terminate()
        upstream.wait()
        observer.wait()


@contextmanager
def serve_target(
    target: Target, bench: Path, folder: Path, upstream: int, body: bytes
) -> Iterator[Running | None]:
    """The target on a core of its own, once it answers; None where it never did. Its log is in the
    folder."""
    if target.command is None:
        yield Running(target, upstream, None, resident_mb(upstream))
        return
    with (folder / f"{target.name}.log").open("w") as log:
        process = subprocess.Popen(
            ["taskset", "-c", TARGET_CORE, *target.command],
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": str(bench), **target.environment},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        first = count_answers(target.port, _numbered(target.headers, 0), body, START_TIMEOUT_S)
        if first is None:
            print(f"{target.name} never answered 200", flush=True)
        elif target.name.startswith("om_"):
            wait_ready(target.port, START_TIMEOUT_S)
        if WORKERS in target.name:
            time.sleep(SETTLE_S)
        yield (
            Running(target, process.pid, first, resident_mb(process.pid))
            if first is not None
            else None
        )
    finally:
        process.terminate()
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_ENVIRONMENT = {
    "UP": MODEL_SERVER,
    "NO_PROXY": "*",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "LITELLM_MODE": "PRODUCTION",
}


def make_known(running: Running, name: str, connections: int, body: bytes) -> None:
    """Show each connection's thread its history, and let observing settle: what is measured then
    knows it."""
    for number in range(connections):
        count_answers(
            running.target.port,
            _numbered(thread_headers(running.target, name), number),
            body,
            START_TIMEOUT_S,
            needed=2,
        )
    time.sleep(1)


def thread_headers(target: Target, name: str) -> list[str]:
    """Each cell has threads of its own."""
    return [header.replace("bench-####", f"bench-{name}-####") for header in target.headers]


def _numbered(headers: Sequence[str], number: int) -> list[str]:
    return [header.replace("####", f"{number:04}") for header in headers]


def count_answers(
    port: int, headers: Sequence[str], body: bytes, limit_s: float, needed: int = 5
) -> float | None:
    """Seconds until so many answers of 200; None where they did not come."""
    begun, good = time.monotonic(), 0
    sent = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    sent |= dict(header.split(": ", 1) for header in headers)
    while time.monotonic() - begun < limit_s:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/v1/chat/completions", body, sent)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            good += answer.status == 200
        except OSError:
            time.sleep(0.05)
        if good == needed:
            return time.monotonic() - begun
    return None


def wait_ready(port: int, limit_s: float) -> None:
    """Until the proxy has loaded what it counts tokens with, beside its first answers: that is its
    start, not its service."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            return
        time.sleep(0.05)
    print(f"port {port} is not ready after {limit_s} s", flush=True)


def read_reply(body: bytes) -> dict[str, object]:
    """The message that the fake model server always answers."""
    connection = http.client.HTTPConnection("127.0.0.1", UPSTREAM_PORT, timeout=30)
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    message: dict[str, object] = json.loads(connection.getresponse().read())["choices"][0][
        "message"
    ]
    connection.close()
    return message


def family(pid: int) -> list[int]:
    """A process and all below it; nobody, where it has ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(below for child in children for below in family(int(child)))]


def cpu_s(pid: int) -> float:
    """CPU seconds that a process and all below it have used."""
    return sum(_ticks(one) for one in family(pid)) / TICKS_PER_S


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])


def resident_mb(pid: int) -> float:
    """A process and all below it. What they share counts once."""
    return round(sum(_share_kb(one) for one in family(pid)) / 1024, 1)


def _share_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
