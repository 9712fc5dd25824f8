"""`om-proxy store rekey-tenant` moves the memory of one API key to another."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
from pathlib import Path

import pytest

from om_proxy.memory.model import Key
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.tenants import find_tenant
from om_proxy.storage.sqlite.store import SqliteStore
from tests.cli.canary_threads import store_canary_threads
from tests.cli.command_line import CONFIG, run_om_proxy

SECRETS = ("sk-hush-old", "sk-hush-new")


async def store_threads_of(path: Path, credential: str, *threads: str) -> str:
    """Store threads of this API key, and return its tenant."""
    store = await SqliteStore.open(path)
    headers = [(b"authorization", b"Bearer " + credential.encode())]
    tenant = find_tenant(headers, IdentityRules(), await store.secret())
    await store.close()
    assert tenant is not None
    await store_canary_threads(path, *(Key(tenant, thread, thread) for thread in threads))
    return tenant


def rekey(folder: Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    ended = run_om_proxy(
        "store", "rekey-tenant", "--config", "om.yaml", cwd=folder, stdin=stdin, **env
    )
    assert "hush" not in ended.stdout + ended.stderr
    return ended


def tenants(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return {tenant for (tenant,) in database.execute("SELECT tenant FROM thread")}


@pytest.mark.parametrize("by", ["environment", "standard input", "both"])
def test_rekey_tenant(tmp_path: Path, by: str) -> None:
    """Both keys come from the environment or standard input; the output counts what moved."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    old = asyncio.run(store_threads_of(tmp_path / "om.db", SECRETS[0], "t", "u"))
    env = {
        f"OM_PROXY_{which}_CREDENTIAL": key
        for which, key in zip(("OLD", "NEW"), SECRETS, strict=True)
    }
    given = {
        "environment": ("", env),
        "standard input": ("\n".join(SECRETS), {}),
        "both": (f"{SECRETS[1]}\n", {"OM_PROXY_OLD_CREDENTIAL": SECRETS[0]}),
    }
    stdin, variables = given[by]
    ended = rekey(tmp_path, stdin, **variables)
    assert (ended.returncode, ended.stderr) == (0, "")
    (new,) = tenants(tmp_path / "om.db")
    assert new != old
    assert ended.stdout == f"moved: 2 threads with 2 messages, to tenant {new}\n"
    again = rekey(tmp_path, stdin, **variables)
    assert (again.returncode, again.stdout) == (4, "")
    assert "no memory of the old credential" in again.stderr


@pytest.mark.parametrize(
    ("stdin", "said"),
    [("", "is empty"), (SECRETS[0], "is empty"), (f"{SECRETS[0]}\n{SECRETS[0]}\n", "are the same")],
    ids=["none", "one", "one twice"],
)
def test_rekey_tenant_needs_two_keys(tmp_path: Path, stdin: str, said: str) -> None:
    (tmp_path / "om.yaml").write_text(CONFIG)
    asyncio.run(store_threads_of(tmp_path / "om.db", SECRETS[0], "t"))
    ended = rekey(tmp_path, stdin)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


def test_rekey_tenant_takes_no_key_as_an_argument(tmp_path: Path) -> None:
    """Every user of the machine can read the arguments."""
    ended = run_om_proxy("store", "rekey-tenant", *SECRETS, cwd=tmp_path)
    assert ended.returncode == 2
    assert "unrecognized arguments" in ended.stderr


def test_rekey_tenant_to_a_configured_key(tmp_path: Path) -> None:
    """With `auth.keys`, the memory moves to the new key's tenant; any other key is refused."""
    (tmp_path / "om.yaml").write_text(
        CONFIG + f"auth: {{keys: [{{tenant: acme, key: {SECRETS[1]}}}]}}\n"
    )
    asyncio.run(store_threads_of(tmp_path / "om.db", SECRETS[0], "t"))
    other = rekey(tmp_path, f"{SECRETS[0]}\nsk-hush-else\n")
    assert (other.returncode, other.stdout) == (2, "")
    assert "auth.keys" in other.stderr
    assert rekey(tmp_path, "\n".join(SECRETS)).returncode == 0
    assert tenants(tmp_path / "om.db") == {"acme"}
