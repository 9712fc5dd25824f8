"""Which master keys a database lets in."""

from __future__ import annotations

import pytest

from om_proxy.common.errors import WrongKeyStore, WrongMasterKey
from om_proxy.storage.encryption.admission import check_key_store, check_master
from om_proxy.storage.encryption.master_keys import MasterKeys

ONE, TWO = MasterKeys([bytes([1] * 32)]), MasterKeys([bytes([2] * 32)])
BOTH = MasterKeys([bytes([2] * 32), bytes([1] * 32)])


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
