"""`om-proxy token` prints a token that a server takes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.common.errors import Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.settings.config import load
from om_proxy.settings.identity.callers import identify

TOKEN_SECRET = "0123456789abcdef0123456789abcdef"


TWO_KEYS = "keys: [{tenant: acme, key: sk-a}, {tenant: globex, key: sk-b}]"


def make_token(config: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["token", "--config", str(config), *options]) == 0
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("auth", "options", "tenant", "key"),
    [
        ("", [], "local", {}),
        ("keys: [{tenant: acme, key: sk-a}]", [], "acme", {"authorization": "Bearer sk-a"}),
        (TWO_KEYS, ["--tenant", "globex"], "globex", {"authorization": "Bearer sk-b"}),
    ],
)
def test_a_token_is_taken(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    auth: str,
    options: list[str],
    tenant: str,
    key: dict[str, str],
) -> None:
    """A server with the same file identifies the caller by the token, until the token expires."""
    config = tmp_path / "om.yaml"
    config.write_text(
        f"auth: {{token_secret: {TOKEN_SECRET}, token_required: true{', ' + auth if auth else ''}}}"
    )
    text = make_token(config, capsys, "--resource", "ada", "--thread", "t", "--ttl", "5m", *options)
    sent = [(name.encode(), value.encode()) for name, value in {**key, "x-om-token": text}.items()]
    rules = EdgeConfig.from_settings(load(config)).identity
    assert identify(sent, rules, b"s", time.time() + 290).key == (tenant, "ada", "t")
    with pytest.raises(Unauthorized, match="expired"):
        identify(sent, rules, b"s", time.time() + 331)


@pytest.mark.parametrize(
    ("auth", "options", "said"),
    [
        (
            f"{{token_secret: {TOKEN_SECRET}}}",
            ["--resource", "a\tb"],
            "--resource and --thread must be",
        ),
        (
            f"{{token_secret: {TOKEN_SECRET}}}",
            ["--resource", "ada", "--thread", ""],
            "--resource and --thread must be",
        ),
        (
            f"{{token_secret: {TOKEN_SECRET}}}",
            ["--resource", "ada", "--ttl", "20"],
            "--ttl = 20: must be a duration",
        ),
        (
            f"{{token_secret: {TOKEN_SECRET}}}",
            ["--resource", "ada", "--tenant", "acme"],
            "there are none",
        ),
        (
            f"{{token_secret: {TOKEN_SECRET}, {TWO_KEYS}}}",
            ["--resource", "ada"],
            "must be one of auth.keys: acme, globex",
        ),
    ],
)
def test_no_token_for_wrong_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], auth: str, options: list[str], said: str
) -> None:
    """A token that a server would refuse is not made; the error says what to do."""
    config = tmp_path / "om.yaml"
    config.write_text(f"auth: {auth}")
    assert main(["token", "--config", str(config), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert TOKEN_SECRET not in captured.err


def test_no_token_without_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The configuration lacks it, so the status is another one than that of wrong options."""
    config = tmp_path / "om.yaml"
    config.write_text("auth: {}")
    assert main(["token", "--config", str(config), "--resource", "ada"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "auth.token_secret is not set" in captured.err
