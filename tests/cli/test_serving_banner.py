"""A server's banner."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from om_proxy.cli.serving import create_sign_in, print_banner
from om_proxy.settings.config import parse
from tests.cli.command_line import MISPLACED_KEY_CONFIG, serve_in


def test_the_banner_repeats_no_secret(tmp_path: Path) -> None:
    """The banner ends in logs, so it shows no secret of the settings."""
    with serve_in(tmp_path, MISPLACED_KEY_CONFIG) as (process, _):
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert "sqlite:///om.db" in out
    assert re.search(r"^dashboard: http://127\.0\.0\.1:\d+/om/$", out, re.M)
    # its link signs in, and is in no log line
    (token,) = re.findall(r"^sign in .*: http://127\.0\.0\.1:\d+/om/#/sign-in/(.+)$", out, re.M)
    assert token not in err
    assert "hush" not in out + err
    assert "sk-proj" not in out + err


@pytest.mark.parametrize(
    ("server", "has_link"),
    [("port: 1", True), ("host: 0.0.0.0", False), ("host: 10.0.0.1", False), ('api: "off"', False)],
)
def test_only_a_server_on_loopback_has_a_link(server: str, has_link: bool) -> None:
    """It signs in whoever reads the terminal, so others must not reach the server."""
    settings = parse(f"server: {{{server}, admin_token: a-long-admin-token}}")
    assert (create_sign_in(settings) is not None) is has_link


@pytest.mark.parametrize(
    ("host", "opened", "listens"),
    [
        ("127.0.0.1", "127.0.0.1", None),
        ("0.0.0.0", "127.0.0.1", "all addresses (0.0.0.0)"),  # noqa: S104 - it is only printed
        ("'::'", "[::1]", "all addresses (::)"),
        ("10.0.0.1", "10.0.0.1", None),
    ],
)
def test_the_addresses_can_be_opened(
    host: str, opened: str, listens: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server on all addresses names the one of this machine, which a browser opens."""
    print_banner(parse(f"server: {{host: {host}, admin_token: a-long-admin-token}}"), 8400)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f" on http://{opened}:8400/v1")
    assert f"dashboard: http://{opened}:8400/om/" in lines
    assert [line.removeprefix("listens on: ") for line in lines if line.startswith("listens")] == (
        [listens] if listens else []
    )
