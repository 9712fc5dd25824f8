"""`om-proxy forget` removes a thread and its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from om_proxy.cli import main
from om_proxy.cli.commands.forget import wait_until_erased
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.sqlite.store import SqliteStore
from tests.cli.canary_threads import count_canaries, store_canary_threads
from tests.cli.command_line import CONFIG, clean_environment, run_om_proxy, serve_in
from tests.support.redis_server import find_redis_url, own_prefix


@pytest.fixture
def url() -> str:
    return find_redis_url()


@pytest.fixture
def prefix(url: str) -> Iterator[str]:
    with own_prefix(url) as name:
        yield name


def test_forget(tmp_path: Path) -> None:
    """It prints the thread and removes it with its bytes; a title's escape sequence is escaped."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    asyncio.run(
        store_canary_threads(tmp_path / "om.db", Key("local", "t", "t"), Key("local", "u", "u"))
    )
    ended = run_om_proxy("forget", "t", "--config", "om.yaml", "--yes", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    first, second, third = ended.stdout.splitlines()
    assert first.startswith("thread t of resource t, tenant local: 1 messages, last used 20")
    assert first.endswith("Ways\\u001b[31m home")
    assert second == "forgotten: 1 messages, 0 notes in 0 logs"
    assert re.fullmatch("receipt: [0-9a-f]{32}", third)
    assert count_canaries(tmp_path / "om.db") == 1
    again = run_om_proxy("forget", "t", "--config", "om.yaml", "--yes", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (4, "")
    assert again.stderr == "om-proxy: there is no memory of a thread t in this store\n"


def test_forget_by_a_name_in_any_script(tmp_path: Path) -> None:
    """A name is found in either Unicode normal form, as a keyboard may type it."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    asyncio.run(store_canary_threads(tmp_path / "om.db", Key("local", "Zoë", "Küche 対話 100%")))
    name = ("forget", "Ku\u0308che 対話 100%", "--resource", "Zoe\u0308")
    assert run_om_proxy(*name, "--config", "om.yaml", "--yes", cwd=tmp_path).returncode == 0
    assert count_canaries(tmp_path / "om.db") == 0


def test_forget_refuses_an_ambiguous_name(tmp_path: Path) -> None:
    """If several threads have the name, none is removed; the options choose one."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    keys = [Key("a", "r", "t"), Key("a", "s", "t"), Key("b", "r", "t")]
    asyncio.run(store_canary_threads(tmp_path / "om.db", *keys))
    forget = ("forget", "t", "--config", "om.yaml", "--yes")
    for more in ((), ("--resource", "r"), ("--tenant", "a")):
        ended = run_om_proxy(*forget, *more, cwd=tmp_path)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert len(ended.stderr.splitlines()) == (3 if more else 4)
    assert run_om_proxy(*forget, "--tenant", "c", cwd=tmp_path).returncode == 4
    assert count_canaries(tmp_path / "om.db") == 3
    assert run_om_proxy(*forget, "--tenant", "a", "--resource", "s", cwd=tmp_path).returncode == 0
    assert run_om_proxy(*forget, "--tenant", "a", cwd=tmp_path).returncode == 0
    assert run_om_proxy(*forget, cwd=tmp_path).returncode == 0
    assert count_canaries(tmp_path / "om.db") == 0


def test_forget_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal it names the option to add; on a terminal, only a yes removes the
    thread."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    asyncio.run(store_canary_threads(tmp_path / "om.db", Key("local", "t", "t")))
    monkeypatch.chdir(tmp_path)
    forget = ["forget", "t", "--config", "om.yaml"]
    alone = run_om_proxy(*forget, cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "--yes" in alone.stderr
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", Mock(side_effect=[EOFError, "", "n", "Yes "]))
    for status in (1, 1, 1, 0):
        assert main(forget) == status
    assert "nothing was forgotten" in capsys.readouterr().out
    assert count_canaries(tmp_path / "om.db") == 0


def test_forget_beside_a_running_server(tmp_path: Path) -> None:
    """The thread is gone for the server at once; the command waits for a reader that holds its
    bytes."""
    with serve_in(tmp_path) as (process, base):
        asyncio.run(store_canary_threads(tmp_path / "om.db", Key("local", "t", "t")))
        assert httpx.get(f"{base}/om/v1/threads/t", trust_env=False, timeout=60).status_code == 200
        with contextlib.closing(
            sqlite3.connect(tmp_path / "om.db", isolation_level=None)
        ) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM thread").fetchall()
            command = [
                sys.executable,
                "-m",
                "om_proxy",
                "forget",
                "t",
                "--config",
                "om.yaml",
                "--yes",
            ]
            forgetting = subprocess.Popen(
                command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, text=True
            )
            assert forgetting.stdout
            said = [forgetting.stdout.readline() for _ in range(4)]
            assert "another program is reading them" in said[3]
            assert count_canaries(tmp_path / "om.db") > 0
            assert (
                httpx.get(f"{base}/om/v1/threads/t", trust_env=False, timeout=60).status_code == 404
            )
        assert forgetting.communicate(timeout=60)[0] == "its bytes are gone\n"
        assert forgetting.returncode == 0
        assert count_canaries(tmp_path / "om.db") == 0
        assert process.poll() is None


async def test_forget_waits_for_a_reader_until_its_timeout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reports a reader that never ends; the rows are gone anyway."""
    key = Key("local", "t", "t")
    await store_canary_threads(tmp_path / "om.db", key)
    store = await SqliteStore.open(tmp_path / "om.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "om.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM thread").fetchall()
        assert (await store.forget(key)).log == "pending"
        await wait_until_erased(store, 0.01, sys.stdout)
        assert "its bytes are still there" in capsys.readouterr().out
        assert await store.threads(None) == ()
        await store.close()


async def test_forget_waits_for_a_log(
    url: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a Redis the bytes are gone once the server has rewritten its log."""
    from om_proxy.storage.redis.store import RedisOptions, RedisStore  # takes the driver

    store = await RedisStore.open(url, RedisOptions(prefix, timeout_s=30.0))
    key = Key("local", "t", "t")
    await store.commit(Memory(key=key), Memory(key=key))
    assert (await store.forget(key)).log == "pending"
    await wait_until_erased(store, 60.0, sys.stdout)
    said = capsys.readouterr().out
    assert "still in the server's log" in said
    assert "its bytes are gone" in said
    await store.close()


def test_a_resource_and_a_tenant_are_forgotten_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what is named goes, and the receipt counts it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "om.yaml").write_text(CONFIG)
    keys = [Key("a", "r", "t"), Key("a", "r", "u"), Key("a", "s", "t"), Key("b", "r", "t")]
    asyncio.run(store_canary_threads(tmp_path / "om.db", *keys))
    forget = ["forget", "--all", "--yes", "--config", "om.yaml"]
    assert main([*forget, "--resource", "q", "--tenant", "a"]) == 4
    assert main([*forget, "--resource", "r"]) == 2  # of which tenant?
    capsys.readouterr()
    assert main([*forget, "--resource", "r", "--tenant", "a"]) == 0
    out = capsys.readouterr().out
    assert "resource r, tenant a: 2 threads\n" in out
    assert "forgotten: 2 threads, 2 messages" in out
    assert count_canaries(tmp_path / "om.db") == 2
    assert main([*forget, "--tenant", "a", "--json"]) == 0
    assert '"scope":"tenant"' in capsys.readouterr().out
    assert count_canaries(tmp_path / "om.db") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a thread"),
        (["--resource", "r"], "name a thread"),
        (["--all"], "needs the --resource or the --tenant"),
        (["t", "--all", "--resource", "r"], "takes no thread"),
    ],
)
def test_nothing_is_forgotten_because_a_name_was_left_out(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["forget", "--yes", *arguments]) == 2
    assert said in capsys.readouterr().err
