"""The image's root may be read-only: a server that has talked, remembered and taken notes has
written to its volume only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import httpx

from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import OBSERVER
from tests.e2e.tenancy.world import Minds
from tests.support.free_port import free_port

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
# Refuses what a read-only root refuses, wherever Python asks for it; and says that it was asked.
GUARDED = """
import errno, os, sys
volume = os.environ["VOLUME"]
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate", "os.utime",
    "sqlite3.connect"}

def guard(event, given):
    if event == "open":
        path, mode, flags = given
        changes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND) if flags else set(mode or "") & set("wax+")
    else:
        path, changes = (given or [""])[0], event in CHANGES
    if changes and isinstance(path, (str, bytes, os.PathLike)):
        path = os.path.abspath(os.fsdecode(path).removeprefix("file:").partition("?")[0])
        if not path.startswith((volume, "/dev/null")):
            print(f"WRITES {event} {path}", file=sys.__stderr__, flush=True)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

sys.addaudithook(guard)
from om_proxy.cli import main
sys.exit(main(["serve"]))
"""


def image_environment(volume: Path) -> dict[str, str]:
    """What the image sets, with its volume here."""
    (said,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE, flags=re.MULTILINE)
    pairs = dict(pair.split("=", 1) for pair in said.replace("\\\n", " ").split())
    return {
        name: value.replace("/data", str(volume)) for name, value in pairs.items() if name != "PATH"
    }


def test_the_image_s_user() -> None:
    """Nobody's number, neither root's nor a person's, and the last word on it; only the volume is
    its own."""
    assert re.findall(r"^USER (.*)$", DOCKERFILE, flags=re.MULTILINE) == ["10001:10001"]
    assert re.search(r"install -d -o 10001 -g 10001 -m 0700 /data\b", DOCKERFILE)
    assert not re.search(r"\bchmod\b|--chown|sudo|setcap", DOCKERFILE)


def test_the_image_s_temporary_folder() -> None:
    """It is where something can be written: importing litellm asks for one, and fails where there
    is none."""
    assert image_environment(Path("/data"))["TMPDIR"] == "/data"


async def test_it_writes_to_its_volume_only(tmp_path: Path) -> None:
    """From the first request to its end, with the environment of the image, in a folder and with a
    home that take nothing."""
    volume, here, port = tmp_path / "volume", tmp_path / "here", free_port()
    volume.mkdir()
    here.mkdir(mode=0o555)
    models = Minds()
    async with (
        serve_on_loopback(models, lifespan="off") as upstream,
        httpx.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        environment = image_environment(volume) | {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "VOLUME": str(volume),
            "OM_PROXY__SERVER__HOST": "127.0.0.1",  # all that differs: a test listens on loopback
            "OM_PROXY__SERVER__PORT": str(port),
            "OM_PROXY__UPSTREAM__0__BASE_URL": f"{upstream}/v1",
            "OM_PROXY__MEMORY__OBSERVATION__MESSAGE_TOKENS": "600",
            "OM_PROXY__MEMORY__OBSERVATION__BUFFER_TOKENS": "150",
        }
        server = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            GUARDED,
            cwd=here,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            async with asyncio.timeout(20):
                assert b"om-proxy" in await server.stdout.readline()
            status = await talked(http, f"http://127.0.0.1:{port}")
        finally:
            if server.returncode is None:
                server.terminate()
            _, said = await server.communicate()
    events = [json.loads(line)["event"] for line in said.splitlines() if line.startswith(b"{")]
    assert [line for line in said.decode().splitlines() if line.startswith("WRITES")] == []
    assert server.returncode == 0
    assert status == "applied"
    assert "observed" in events, "notes were taken"
    assert models.requests[-1].model != OBSERVER
    assert list(here.iterdir()) == []
    assert {file.name[: len("om-proxy.db")] for file in volume.iterdir()} == {
        "om-proxy.db",
        "admin-token",
    }


async def test_the_guard_is_one(tmp_path: Path) -> None:
    """A store outside of the volume does not open, and the guard says so: else the test above would
    prove nothing."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "VOLUME": str(tmp_path / "volume"),
    }
    store = {
        "OM_PROXY__STORAGE__URL": f"sqlite:///{tmp_path}/om.db",
        "OM_PROXY__STORAGE__REQUIRED": "true",
        "OM_PROXY__SERVER__PORT": "0",
        "OM_PROXY__UPSTREAM__0__BASE_URL": "http://127.0.0.1:9/v1",
    }
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        GUARDED,
        cwd=tmp_path,
        env=environment | store,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20):
        _, said = await server.communicate()
    assert server.returncode == 3
    assert f"{tmp_path}/om.db" in said.decode().partition("WRITES")[2]


async def talked(http: httpx.AsyncClient, base: str) -> str:
    """A conversation until its notes are in the prompt; the last status."""
    history = []
    headers = {"authorization": "Bearer sk-a", "x-om-thread": "t"}
    for n in range(40):
        history.append(
            {
                "role": "user",
                "content": f"Crate {n} weighs {n} kg and goes to dock {n}, we decided. " * 6,
            }
        )
        body = {"model": "actor", "messages": history}
        answer = await http.post(f"{base}/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        history.append(answer.json()["choices"][0]["message"])
        if answer.headers["x-om-status"] != "raw":
            break
    return answer.headers["x-om-status"]
