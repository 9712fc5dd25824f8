"""`python -m tests.image ROOT IMAGE.json`: run the image's command in ROOT, and talk to it.

ROOT is the image's file system, unpacked; IMAGE.json what `buildah inspect --type image` says. The
root is read-only for the run, `/data` is a folder that is removed afterwards. Ends with an error
where anything is not as it must be. Linux, as root.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from om_proxy.testing.loopback import serve_on_loopback
from tests.e2e.tenancy.world import Minds
from tests.e2e.test_read_only import talked
from tests.support.free_port import free_port

# 12 MB of it are PostgreSQL's driver, 20 MB those of Redis and what encrypts
OURS_AT_MOST_BYTES = 300_000_000
READY_WITHIN_SECONDS = 60.0
# A mount namespace of its own: what it mounts ends with it. The devices are those Python opens.
ENTER = """
set -eu
root=$1 data=$2 user=$3 group=$4 folder=$5; shift 5
mount --bind "$root" "$root"
mount --bind "$data" "$root/data"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero random urandom; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --reuid="$user" --regid="$group" --clear-groups --bounding-set=-all --no-new-privs \
    env -C "$folder" "$@"
"""


@dataclass(frozen=True)
class Image:
    """A root, what the image says of running it, and the folder that stands for its volume."""

    root: Path
    config: dict[str, Any]
    data: Path

    def command(self, *arguments: str) -> list[str]:
        user, _, group = self.config["User"].partition(":")
        place = [str(self.root), str(self.data), user, group, self.config["WorkingDir"]]
        return [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "bash",
            "-c",
            ENTER,
            "-",
            *place,
            *arguments,
        ]

    def environment(self, **more: str) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.config["Env"]) | more

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def bytes_of(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


def must(holds: bool, what: str) -> None:
    """Raises SystemExit."""
    if not holds:
        raise SystemExit(f"image: not so: {what}")
    print(f"image: {what}", file=sys.stderr)


def examine(image: Image) -> None:
    """What can be told without a server."""
    ours = bytes_of(image.root / "opt" / "om-proxy")
    base = (
        bytes_of(image.root / "usr") + bytes_of(image.root / "var") + bytes_of(image.root / "etc")
    )
    must(ours <= OURS_AT_MOST_BYTES, f"{ours / 1e6:.0f} MB above a base of {base / 1e6:.0f} MB")
    must(
        not list(image.root.glob("etc/pip.conf")) or not (image.root / "etc/pip.conf").read_bytes(),
        "no pip settings are left in it",
    )
    must(
        (image.root / "data").stat().st_uid == int(image.config["User"].partition(":")[0]),
        "/data is its user's",
    )
    must(image.run("sh", "-c", "touch /data/mine").returncode == 0, "it writes to /data")
    (image.data / "mine").unlink()
    refused = image.run(
        "sh",
        "-c",
        "for place in / /app /tmp /var/tmp /opt/om-proxy; do if touch $place/x; then exit 1; fi; done",
    )
    must(
        refused.returncode == 0 and "Read-only file system" in refused.stderr,
        "it writes nowhere else",
    )
    call = "import litellm; print(litellm.completion('gpt-4o', [{'role': 'user', 'content': 'a'}], mock_response='b').id)"
    must(image.run("python", "-c", call).returncode == 0, "litellm works without what is left out")


async def converse(image: Image) -> None:
    """From a first start without an admin token to a conversation with notes, and a clean end; then
    once more."""
    async with (
        serve_on_loopback(Minds(), lifespan="off") as upstream,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        port = str(free_port())
        env = image.environment(
            OM_PROXY__SERVER__PORT=port,
            OM_PROXY__UPSTREAM__0__BASE_URL=f"{upstream}/v1",
            OM_PROXY__MEMORY__OBSERVATION__MESSAGE_TOKENS="600",
            OM_PROXY__MEMORY__OBSERVATION__BUFFER_TOKENS="150",
        )
        tokens = []
        for start in ("first", "second"):
            process = await asyncio.create_subprocess_exec(
                *image.command(*image.config["Cmd"]),
                env=env,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                took = await wait_until_ready(http, f"http://127.0.0.1:{port}", process)
                print(f"image: {start} start: ready after {took:.1f} s", file=sys.stderr)
                tokens.append(await ask(http, f"http://127.0.0.1:{port}", image, port))
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                out, err = await process.communicate()
                if sys.exc_info()[0]:
                    print(out.decode(), err.decode()[-4000:], file=sys.stderr)
            must(process.returncode == 0, "SIGTERM ends it with status 0")
            must(b"admin token: in /data/admin-token\n" in out, "it says where the admin token is")
            must(tokens[-1].encode() not in out + err, "it never says the token")
        must(len(set(tokens)) == 1, "the token is kept over the restart")


async def wait_until_ready(
    http: httpx.AsyncClient, base: str, process: asyncio.subprocess.Process
) -> float:
    """Seconds until `/readyz` says so. Raises SystemExit."""
    began = time.monotonic()
    while time.monotonic() - began < READY_WITHIN_SECONDS and process.returncode is None:
        try:
            if (await http.get(f"{base}/readyz")).status_code == 200:
                return time.monotonic() - began
        except httpx.TransportError:
            pass  # not listening yet; bounded by READY_WITHIN_SECONDS
        await asyncio.sleep(0.05)
    raise SystemExit(
        f"image: it is not ready within {READY_WITHIN_SECONDS:.0f} s; exit status {process.returncode}"
    )


async def ask(http: httpx.AsyncClient, base: str, image: Image, port: str) -> str:
    """Health, a conversation, the admin API; the token."""
    must((await http.get(f"{base}/healthz")).status_code == 200, "/healthz answers 200")
    test = image.config["Healthcheck"]["Test"]
    must(test[0] == "CMD", "HEALTHCHECK is kept by the image's format")
    healthy = await asyncio.to_thread(image.run, *test[1:], OM_PROXY__SERVER__PORT=port)
    must(healthy.returncode == 0, "HEALTHCHECK is content")
    must(await talked(http, base) == "applied", "a conversation gets its notes: applied")
    file = image.data / "admin-token"
    must(
        stat.S_IMODE(file.stat().st_mode) == 0o600,
        "the admin token's file is its user's alone: 0600",
    )
    token = file.read_text(encoding="utf-8").strip()
    opened = [
        (await http.get(f"{base}/om/v1/threads", headers={"x-om-admin": t})).status_code
        for t in (token, "another")
    ]
    must(opened == [200, 401], "the token opens the admin API, another does not")
    return token


def copy_store(image: Image) -> None:
    """What docs/guides/moving.md does in Docker, after the server has stopped, into a file."""
    command = ("env", "-u", "OM_PROXY__STORAGE__URL", "om-proxy", "store", "copy")
    done = image.run(*command, "/data/om-proxy.db", "/data/copy.db", "--update", "--verify")
    must(
        done.returncode == 0 and "both stores are equal" in done.stdout,
        "its store is copied by a container of its own",
    )
    backed_up = image.run("om-proxy", "store", "backup", "/data/backup.db")
    must(backed_up.returncode == 0, "it is backed up")
    beside = sorted(file.name for file in image.data.glob("backup.db*"))
    must(beside == ["backup.db"], "a backup leaves nothing beside it")


def main(root: str, inspected: str) -> None:
    config = json.loads(Path(inspected).read_text(encoding="utf-8"))["Docker"]["config"]
    user, _, group = config["User"].partition(":")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir(mode=0o700)
        os.chown(data, int(user), int(group))
        image = Image(Path(root), config, data)
        examine(image)
        asyncio.run(converse(image))
        copy_store(image)


if __name__ == "__main__":
    main(*sys.argv[1:])
