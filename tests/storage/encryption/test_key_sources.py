"""Where master keys are read from."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from om_proxy.common.errors import ConfigError
from om_proxy.settings.identity.encryption_keys import name_master_key
from om_proxy.storage.encryption import key_sources
from om_proxy.storage.encryption.key_sources import load_master_keys

KEY = bytes(range(32))
TEXT = base64.b64encode(KEY).decode()


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
    monkeypatch.setattr(key_sources, "COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigError, match=r"gave no key in 0\.2 s"):
        load_master_keys(("command:sleep 60",))
