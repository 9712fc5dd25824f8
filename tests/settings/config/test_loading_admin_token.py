"""The admin token that a server makes if it was given none."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from om_proxy.common.errors import ConfigError
from om_proxy.settings.config import WatchedSettings, load, render_admin_token_file
from om_proxy.settings.config.loading import add_admin_token

OPEN = {"OM_PROXY__SERVER__HOST": "0.0.0.0"}  # noqa: S104 - nothing listens


def make_env(file: Path, **more: str) -> dict[str, str]:
    return OPEN | {"OM_PROXY_ADMIN_TOKEN_FILE": str(file)} | more


def load_token(env: dict[str, str]) -> str:
    token = load(env=env).server.admin_token
    assert token is not None
    return token.get_secret_value()


def test_a_token_is_made_and_kept(tmp_path: Path) -> None:
    """A new token is long, only its owner can read it, the next start reads the same one, and the
    folder holds no other file."""
    file = tmp_path / "admin-token"
    token = load_token(make_env(file))
    assert len(token) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == f"{token}\n"
    assert load_token(make_env(file)) == token
    assert list(tmp_path.iterdir()) == [file]


def test_each_folder_has_its_own(tmp_path: Path) -> None:
    """Tokens are random."""
    assert load_token(make_env(tmp_path / "a")) != load_token(make_env(tmp_path / "b"))


@pytest.mark.parametrize("variable", ["OM_PROXY_ADMIN_TOKEN", "OM_PROXY__SERVER__ADMIN_TOKEN"])
def test_a_given_token_counts(tmp_path: Path, variable: str) -> None:
    """If a token is given, no file is made. An empty variable gives no token."""
    file = tmp_path / "admin-token"
    assert (
        load_token(make_env(file, **{variable: "given-by-the-operator"})) == "given-by-the-operator"
    )
    assert not file.exists()
    assert load_token(make_env(file, OM_PROXY_ADMIN_TOKEN="")) == file.read_text().strip()


def test_a_mounted_file_counts(tmp_path: Path) -> None:
    """A mounted secret is read and not changed."""
    file = tmp_path / "secret"
    file.write_text(" of-my-own-making-here\n")
    file.chmod(0o444)
    assert load_token(make_env(file)) == "of-my-own-making-here"
    assert stat.S_IMODE(file.stat().st_mode) == 0o444


@pytest.mark.parametrize(
    ("content", "why"),
    [(b" \n", "is empty: remove it"), (b"\xff\xfe", "cannot read or write the admin token")],
)
def test_a_file_without_a_token(tmp_path: Path, content: bytes, why: str) -> None:
    """An open address is refused, and the error says why the file gave no token. Loopback needs no
    token, and starts."""
    file = tmp_path / "admin-token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as caught:
        load(env=make_env(file))
    assert "needs server.admin_token" in str(caught.value)
    assert load(env={"OM_PROXY_ADMIN_TOKEN_FILE": str(file)}).server.admin_token is None
    assert file.read_bytes() == content


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The same if the file cannot be made. With a given token the file is not needed."""
    file = tmp_path / "absent" / "admin-token"
    with pytest.raises(ConfigError, match="FileNotFoundError") as caught:
        load(env=make_env(file))
    assert "needs server.admin_token" in str(caught.value)
    assert load(env={"OM_PROXY_ADMIN_TOKEN_FILE": str(file)}).server.admin_token is None
    assert (
        load_token(make_env(file, OM_PROXY_ADMIN_TOKEN="given-by-the-operator"))
        == "given-by-the-operator"
    )


def test_servers_that_start_at_once(tmp_path: Path) -> None:
    """Servers that start at once share one file and one token."""
    env = make_env(tmp_path / "admin-token")
    for _ in range(20):
        with ThreadPoolExecutor(8) as pool:
            tokens = {
                told["OM_PROXY_ADMIN_TOKEN"] for told, _ in pool.map(add_admin_token, [env] * 8)
            }
        assert len(tokens) == 1
        (tmp_path / "admin-token").unlink()


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links the file is still made whole."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    file = tmp_path / "admin-token"
    assert len(load_token(make_env(file))) == 64
    assert list(tmp_path.iterdir()) == [file]


def test_a_changed_file_of_settings_keeps_the_token(tmp_path: Path) -> None:
    """A reload reads the token too: otherwise every change would be refused."""
    settings = tmp_path / "om.yaml"
    settings.write_text("")
    env = make_env(tmp_path / "admin-token")
    watched = WatchedSettings(load(settings, env), settings, env)
    assert watched._apply_text(settings, "memory: {enabled: false}")
    assert not watched.current.memory.enabled
    assert watched.current.server.admin_token == load(settings, env).server.admin_token


def test_the_place_of_the_token(tmp_path: Path) -> None:
    """The file is named only if the token in force comes from it. The token itself is never
    shown."""
    file = tmp_path / "admin-token"
    env = make_env(file)
    settings = load(env=env)
    assert render_admin_token_file(settings, env) == f"admin token: in {file}"
    assert (
        render_admin_token_file(
            load(env=env | {"OM_PROXY_ADMIN_TOKEN": "given-by-the-operator"}), env
        )
        is None
    )
    assert render_admin_token_file(settings, OPEN) is None
    file.unlink()
    assert render_admin_token_file(settings, env) is None
