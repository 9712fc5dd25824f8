"""`om-proxy demo`, without a terminal."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.cli import main
from om_proxy.cli.commands import demo
from om_proxy.cli.demo.stage import ServedDemo
from om_proxy.cli.demo.story import Story, load_story
from om_proxy.common.errors import OmError
from om_proxy.management.api.sign_in import SignIn
from tests.cli.command_line import run_om_proxy


@pytest.fixture
def short() -> Story:
    """The story's first morning and its last question."""
    story = load_story()
    return Story((*story.turns[:9], story.turns[-1]))


def test_command_prints_table_sums_and_prompt(
    short: Story, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal it prints plain lines: rows, sums, prices, answers, and on request the
    prompt."""
    monkeypatch.setattr(demo, "load_story", lambda: short)
    monkeypatch.setattr(demo.logs, "configure_log", lambda _: None)
    assert main(["demo", "--show-prompt"]) == 0
    out = capsys.readouterr().out
    for part in (
        "Mon Mar 2      1  Morning.",
        "without memory",
        "gpt-5.4",
        "om-proxy",
        "<observations>",
        "[tool]",
    ):
        assert part in out
    assert "\x1b" not in out


def test_command_tells_of_a_failure(
    short: Story, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error is one line on stderr and status 1."""

    def broken() -> Story:
        raise OmError("no stage")

    monkeypatch.setattr(demo, "load_story", broken)
    monkeypatch.setattr(demo.logs, "configure_log", lambda _: None)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "om-proxy demo: no stage\n"


def read_config_line(process: subprocess.Popen[str]) -> str:
    """Read up to the line that tells how commands find the settings, and return the variable's
    value."""
    assert process.stdout is not None
    for line in process.stdout:
        if "OM_PROXY_CONFIG=" in line:
            return shlex.split(line.partition("=")[2])[0]
    raise AssertionError("no line names the settings")


def test_commands_are_told_the_whole_configuration() -> None:
    """Otherwise they would show thresholds and ask models that the demo does not have."""
    line = demo.describe_commands(ServedDemo("http://h", Path("/a b/demo.yaml"), SignIn()))
    assert shlex.split(line.partition(" export ")[2]) == ["OM_PROXY_CONFIG=/a b/demo.yaml"]


def list_threads(config: str, folder: Path) -> list[dict[str, Any]]:
    """List the threads as a command in any folder does."""
    listed = run_om_proxy("threads", "--json", cwd=folder, OM_PROXY_CONFIG=config)
    assert listed.returncode == 0, listed.stderr
    found: list[dict[str, Any]] = json.loads(listed.stdout)["items"]
    return found


def test_served_until_a_signal_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--serve` prints an address that answers and where its store is, and ends at a signal, which
    it says; a port in use is an error."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "om_proxy", "demo", "--serve", "--port"]
        monkeypatch.setattr(demo.logs, "configure_log", lambda *_, **__: None)
        assert main(["demo", "--serve", "--port", port]) == 1
        told = f"om-proxy demo: port {port} of 127.0.0.1 is in use; choose another\n"
        assert capsys.readouterr() == ("", told)
    with subprocess.Popen(
        [*command, port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rpartition(" ")[2].strip()
            assert url == f"http://127.0.0.1:{port}/v1"
            body = {"model": "any", "messages": [{"role": "user", "content": "It rains."}]}
            answer = httpx.post(
                f"{url}/chat/completions",
                json=body,
                headers={"x-om-thread": "rain"},
                timeout=60,
                trust_env=False,
            )
            assert answer.json()["choices"][0]["message"]["content"].startswith("Noted: It rains.")
            threads = list_threads(config := read_config_line(process), tmp_path)
            assert [line["thread"] for line in threads] == ["rain"]
            done = run_om_proxy("doctor", "--call", cwd=tmp_path, OM_PROXY_CONFIG=config)
            assert "call to scripted-observer returned notes" in done.stdout, done.stderr
            assert "api.openai.com" not in done.stdout
            process.send_signal(signal.SIGTERM)
            assert "om-proxy demo: ending; open requests have 2 s\n" in process.communicate()[1]
            assert process.returncode == 0
        finally:
            process.kill()


def test_the_kept_memory_is_shown_until_a_signal_comes(tmp_path: Path) -> None:
    """`--keep` plays once and prints the dashboard's address, also where the port is in use. The
    same command shows the memory again without playing."""
    command = [sys.executable, "-m", "om_proxy", "demo", "--keep", "kept", "--port"]
    for is_played in (True, False):
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            subprocess.Popen(
                [*command, str(taken.getsockname()[1])],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            try:
                assert process.stdout is not None
                lines = []
                while not (lines and "Ctrl-C" in lines[-1]):
                    lines.append(process.stdout.readline())
                assert (len(lines) > 10) == is_played
                found = re.search(r"http://127\.0\.0\.1:\d+/om/", "".join(lines))
                assert found
                page = httpx.get(found[0], timeout=60, trust_env=False)
                assert page.status_code == 200
                threads = httpx.get(f"{found[0]}v1/threads", timeout=60, trust_env=False).json()
                assert [line["thread"] for line in threads["items"]] == ["van-planner"]
                [config] = re.findall(r"OM_PROXY_CONFIG=(\S+)", "".join(lines))
                if not is_played:
                    listed = list_threads(shlex.split(config)[0], tmp_path)
                    assert [line["thread"] for line in listed] == ["van-planner"]
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=60) == 0
            finally:
                process.kill()
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
