"""`om-proxy replay`, run as its users run it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from om_proxy.agents.models import create_encoder
from om_proxy.cli import main
from om_proxy.proof.recorder import Recorder
from om_proxy.proof.scripted_notes import ScriptedNotes
from om_proxy.testing.loopback import serve_on_loopback
from tests.cli.command_line import clean_environment, run_om_proxy
from tests.support.interrupts import heed_ctrl_c

HISTORIES = Path(__file__).parents[2] / "proof" / "histories"
CANARIES = ("canary-7f3a", "sk-canary-0123456789abcdef0123")


def run_replay(
    *arguments: str, cwd: Path, before: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-m", "om_proxy", "replay", *arguments],
        cwd=cwd,
        env=clean_environment() | {"HOME": str(cwd), "COLUMNS": "120"} | env,
        input="",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def write_history(folder: Path, title: str | None = None, turn_count: int = 3) -> Path:
    """Write a conversation whose every message holds the canaries."""
    said = " ".join(CANARIES) + " and some words more. "
    messages = [
        {"role": role, "content": said * 4, "created_at": 1_767_348_000 + n}
        for n, role in enumerate(("user", "assistant") * turn_count)
    ]
    path = folder / "history.jsonl"
    path.write_text(json.dumps({"id": "one", "title": title, "messages": messages}) + "\n")
    return path


def test_it_runs_without_a_network_and_shows_no_text(tmp_path: Path) -> None:
    """In a network namespace without any way out. Only the title is shown, its control characters
    made visible."""
    path = write_history(tmp_path, "My \x1b[31mtitle")
    before: tuple[str, ...] = ()
    if shutil.which("unshare") and can_unshare():
        before = ("unshare", "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
    done = run_replay(str(path), cwd=tmp_path, before=before)
    assert done.returncode == 0, done.stderr
    assert "My \\u001b[31mtitle · 3 calls · gpt-5.4 · perfect cache" in done.stdout
    assert "memory, auto (gpt-5-mini)" in done.stdout
    assert not [canary for canary in CANARIES if canary in done.stdout + done.stderr]
    assert [file.name for file in tmp_path.iterdir()] == ["history.jsonl"]


def can_unshare() -> bool:
    tried = ("unshare", "-rn", "sh", "-c", "ip link set lo up")
    return subprocess.run(tried, capture_output=True, check=False, timeout=10).returncode == 0


def test_json_without_titles(tmp_path: Path) -> None:
    path = write_history(tmp_path, "Secret plan")
    done = run_replay(
        str(path), "--json", "--no-titles", "--actor", "claude-sonnet-4-5", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["conversations"]
    assert (found["id"], found["title"], found["calls"]) == ("one", None, 3)
    assert [row["memory_model"] for row in found["memory"]] == [
        "claude-haiku-4-5", "claude-sonnet-4-5",
    ]  # fmt: skip
    assert "Secret" not in done.stdout
    assert not [canary for canary in CANARIES if canary in done.stdout + done.stderr]


def test_without_a_path_the_known_places_are_read(tmp_path: Path) -> None:
    projects = tmp_path / ".claude" / "projects" / "p"
    projects.mkdir(parents=True)
    shutil.copy(HISTORIES / "claude-code-requests" / "input.jsonl", projects / "s.jsonl")
    sessions = tmp_path / "agent" / "sessions" / "2026"
    sessions.mkdir(parents=True)
    shutil.copy(HISTORIES / "codex" / "input.jsonl", sessions / "rollout-1.jsonl")
    (sessions / "rollout-2.jsonl.zst").write_bytes(b"(\xb5/\xfd")
    places = {"HOME": str(tmp_path), "CODEX_HOME": str(tmp_path / "agent")}
    done = run_om_proxy("replay", "--list", cwd=tmp_path, **places)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()[1:]]
    assert [line[:2] for line in lines] == [["A file", "claude-code"], ["s1", "codex"]]
    assert "zstd -d" in done.stderr
    since = run_om_proxy("replay", "--list", "--since", "1d", cwd=tmp_path, **places)
    assert since.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 4, "no history was found in"),
        (("absent.jsonl",), 4, "there is no file absent.jsonl"),
        (("odd.txt",), 2, "not recognised"),
        (("--from", "chaos", "odd.txt"), 2, "no reader is named chaos"),
        (("--price", "in=x", "odd.txt"), 2, "--price must be"),
        (("--since", "soon", "odd.txt"), 2, "must be a number with its unit"),
        (("--top", "0", "odd.txt"), 2, "must be 1 to"),
        (("--budget", "5", "odd.txt"), 2, "belong to --with-model"),
        (("--with-model", "script:notes", "odd.txt"), 2, "add --yes"),
        (("--with-model", "x@http://h/v1", "--budget", "5", "--yes", "odd.txt"), 2, "no price"),
        (("--settings", "wrong.yaml", "odd.txt"), 3, "wrong.yaml:1"),
        (("empty.jsonl",), 4, "no conversation with a reply"),
    ],
)
def test_bad_input_says_what_to_do(
    arguments: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "odd.txt").write_text("no JSON\n")
    (tmp_path / "wrong.yaml").write_text("colour: red\n")
    (tmp_path / "empty.jsonl").write_text('{"role":"user","content":"Hi"}\n')
    done = run_om_proxy("replay", *arguments, cwd=tmp_path, HOME=str(tmp_path))
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr


async def test_a_model_makes_the_notes_after_a_plan(tmp_path: Path) -> None:
    """The plan names tokens, files, host and price. Nothing but the model's server is asked."""
    path = write_history(tmp_path, turn_count=10)
    rules = tmp_path / "rules.yaml"
    rules.write_text('memory: {economy: "off", observation: {message_tokens: 300}}\n')
    notes = ScriptedNotes(2.0, create_encoder(""))
    async with serve_on_loopback(Recorder({"/v1": notes}), lifespan="off") as url:
        arguments = (str(path), "--settings", str(rules), "--with-model", f"gpt-5-mini@{url}/v1")
        done, stopped = [
            await asyncio.to_thread(run_replay, *arguments, *more, "--yes", cwd=tmp_path)
            for more in (("--json",), ("--budget", "0.001"))
        ]
    assert done.returncode == 0, done.stderr
    assert f"Messages go to {url.removeprefix('http://')}, their secrets replaced" in done.stderr
    assert f"tokens of {path}" in done.stderr
    assert "at $0.25 and $2.00 a million, about $0.0" in done.stderr
    (found,) = json.loads(done.stdout)["conversations"]
    assert found["model_notes"]["calls"] > 1
    assert [row["memory_model"] for row in found["memory"]] == ["gpt-5-mini"]
    assert CANARIES[1] not in done.stdout + done.stderr
    assert stopped.returncode == 6
    assert "of $0.00 are spent" in stopped.stderr


def test_ctrl_c_while_workers_begin_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes right after the first worker has begun, and no worker is left behind."""
    begin = ProcessPoolExecutor.submit

    def begin_under_ctrl_c(pool: ProcessPoolExecutor, *task: Any) -> Future[Any]:
        begun = begin(pool, *task)
        signal.raise_signal(signal.SIGINT)
        return begun

    monkeypatch.setattr(ProcessPoolExecutor, "submit", begin_under_ctrl_c)
    with heed_ctrl_c():
        assert main(["replay", str(write_history(tmp_path))]) == 130
    deadline = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert multiprocessing.active_children() == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the children from /proc")
def test_ctrl_c_ends_it_with_its_workers(tmp_path: Path) -> None:
    """At once, though many plays are left, and without a trace."""
    path = write_history(tmp_path, turn_count=400)
    with heed_ctrl_c(), subprocess.Popen(
        [sys.executable, "-m", "om_proxy", "replay", str(path)],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        # of the two, one counts what is shared: the other workers may still be about to begin
        while time.monotonic() < deadline and len(children.read_text().split()) < 2:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_standard_input_is_read(tmp_path: Path) -> None:
    path = write_history(tmp_path, "Piped", turn_count=1)
    with path.open() as stdin:
        done = subprocess.run(
            [sys.executable, "-m", "om_proxy", "replay", "-", "--list"],
            cwd=tmp_path, env=clean_environment(), stdin=stdin, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert "\nPiped\tmessages\t" in done.stdout, done.stderr
