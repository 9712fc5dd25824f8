"""Decide whether a process may use a database, by the master keys and the key store that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from om_proxy.common.errors import WrongKeyStore, WrongMasterKey

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys


def check_master(stored: str | None, masters: MasterKeys | None) -> None:
    """Raise WrongMasterKey unless the database may be used. `stored`: the id of the newest master key
    that its data keys are wrapped with; None: it is not encrypted."""
    if stored is None and masters is not None:
        raise WrongMasterKey(
            "the database is not encrypted, and storage.encryption_key is set: copy it into a new "
            "one that has the key (`om-proxy store copy FROM TO --verify`), or remove the key"
        )
    if stored is not None and masters is None:
        raise WrongMasterKey(
            f"the database is encrypted with the master key {stored}: set storage.encryption_key"
        )
    if stored is not None and masters is not None and stored not in masters.ids:
        raise WrongMasterKey(
            f"the database is encrypted with another master key, {stored}; "
            f"storage.encryption_key has {', '.join(masters.ids)}"
        )


def open_stored_secret(
    stored: bytes | None, master: str | None, masters: MasterKeys | None
) -> bytes:
    """Return the store's secret. `stored`: as it is stored, and `master`: as in `check_master`, both
    of one moment. Raise WrongMasterKey as that does."""
    check_master(master, masters)
    assert stored is not None  # who could read it would have stored one
    return masters.open_secret(stored) if masters else bytes(stored)


def check_key_store(stored: str | None, *, is_set: bool, offered: str | None = None) -> None:
    """Raise WrongKeyStore unless the database may be used. `stored`: the id of the key store that
    has the database's keys; None: they are beside the data. `is_set`: whether `storage.keys_url`
    is; `offered`: the id of what it names; None: there is no key store yet."""
    if stored is None and is_set:
        raise WrongKeyStore(
            "the keys of this database are beside its data, and storage.keys_url is set: stop the "
            "servers and run `om-proxy store rekey`, which moves them"
        )
    if stored is not None and not is_set:
        raise WrongKeyStore(
            f"the keys of this database are in the key store {stored}: set storage.keys_url"
        )
    if stored is not None and offered is None:
        raise WrongKeyStore(
            f"storage.keys_url names no key store; the keys of this database are in {stored}"
        )
    if stored != offered and stored is not None:
        raise WrongKeyStore(
            f"storage.keys_url names another key store, {offered}; the keys of this database are "
            f"in {stored}"
        )
