"""Where master keys are read from, and which of them a database lets in."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from om_proxy.common.errors import ConfigError, WrongKeyStore, WrongMasterKey
from om_proxy.settings.identity.encryption_keys import name_master_key
from om_proxy.storage.encryption import admission
from om_proxy.storage.encryption.admission import check_master, load_master_keys
from om_proxy.storage.encryption.key_store import check_key_store
from om_proxy.storage.encryption.master_keys import MasterKeys

KEY = bytes(range(32))
TEXT = base64.b64encode(KEY).decode()
ONE, TWO = MasterKeys([bytes([1] * 32)]), MasterKeys([bytes([2] * 32)])
BOTH = MasterKeys([bytes([2] * 32), bytes([1] * 32)])


def test_without_a_source_nothing_is_encrypted() -> None:
    assert load_master_keys(()) is None


def test_a_key_is_the_text_a_file_or_what_a_program_prints(tmp_path: Path) -> None:
    file = tmp_path / "the key"
    file.write_text(f"{TEXT}\n")
    program = f"command:{sys.executable} -c 'print(\"{TEXT}\")'"
    for source in (TEXT, f"file:{file}", program):
        masters = load_master_keys((source,))
        assert masters is not None
        assert masters.ids == (name_master_key(KEY),)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("file:/nonexistent/key", "the file cannot be read: No such file"),
        ("command:/nonexistent/program", "cannot be run: FileNotFoundError"),
        ("command:'", "cannot be run: ValueError"),
        (f"command:{sys.executable} -c 'raise SystemExit(3)'", "ended with status 3"),
        (f"command:{sys.executable} -c 'print(\"HUSH\")'", "the program must hold one key"),
        (f"command:{sys.executable} -c 'input(); print()'", "ended with status 1"),
    ],
)
def test_a_source_without_a_key_is_told_without_what_it_holds(source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_master_keys((source,))
    assert str(caught.value).startswith("storage.encryption_key: ")
    assert "HUSH" not in str(caught.value)


def test_a_program_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigError, match=r"gave no key in 0\.2 s"):
        load_master_keys(("command:sleep 60",))


@pytest.mark.parametrize(
    ("stored", "masters"), [(None, None), (ONE.newest_id, ONE), (ONE.newest_id, BOTH)]
)
def test_a_database_is_opened_with_its_key(stored: str | None, masters: MasterKeys | None) -> None:
    check_master(stored, masters)


@pytest.mark.parametrize(
    ("stored", "masters", "said"),
    [
        (None, ONE, "not encrypted.*om-proxy store copy FROM TO --verify"),
        (ONE.newest_id, None, f"encrypted with the master key {ONE.newest_id}"),
        (ONE.newest_id, TWO, f"another master key, {ONE.newest_id}.* has {TWO.newest_id}"),
    ],
    ids=["unencrypted", "no key", "another key"],
)
def test_a_database_is_not_opened_with_another(
    stored: str | None, masters: MasterKeys | None, said: str
) -> None:
    with pytest.raises(WrongMasterKey, match=said):
        check_master(stored, masters)


def test_a_database_is_opened_with_its_key_store() -> None:
    check_key_store(None, is_set=False)
    check_key_store("one", is_set=True, offered="one")


@pytest.mark.parametrize(
    ("stored", "is_set", "offered", "said"),
    [
        (None, True, None, "beside its data.*om-proxy store rekey"),
        (None, True, "one", "beside its data"),
        ("one", False, None, "in the key store one: set storage.keys_url"),
        ("one", True, None, "names no key store; .* in one"),
        ("one", True, "two", "another key store, two; .* in one"),
    ],
    ids=["beside, none yet", "beside", "not set", "none", "another"],
)
def test_a_database_is_not_opened_with_another_key_store(
    stored: str | None, is_set: bool, offered: str | None, said: str
) -> None:
    with pytest.raises(WrongKeyStore, match=said):
        check_key_store(stored, is_set=is_set, offered=offered)
