"""`om-proxy demo`, without a terminal."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import httpx
import pytest

from om_proxy.cli import demo, main
from om_proxy.demo.story import Story, load_story
from om_proxy.errors import OmError


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
        "gpt-4o",
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


def test_served_until_a_signal_comes() -> None:
    """`--serve` prints an address that answers and ends at a signal; a port in use is an error."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "om_proxy", "demo", "--serve", "--port"]
        refused = subprocess.run(
            [*command, port], check=False, capture_output=True, text=True, timeout=60
        )
        assert (refused.returncode, refused.stdout) == (1, "")
        assert (
            refused.stderr == f"om-proxy demo: port {port} of 127.0.0.1 is in use; choose another\n"
        )
    with subprocess.Popen([*command, port], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rpartition(" ")[2].strip()
            assert url == f"http://127.0.0.1:{port}/v1"
            body = {"model": "any", "messages": [{"role": "user", "content": "It rains."}]}
            answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60, trust_env=False)
            assert answer.json()["choices"][0]["message"]["content"].startswith("Noted: It rains.")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
