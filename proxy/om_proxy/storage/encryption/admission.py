"""Decide whether a process may use a database, by the master keys that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from om_proxy.errors import WrongMasterKey

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys


def check_master(stored: str | None, masters: MasterKeys | None) -> None:
    """Raise WrongMasterKey unless the database may be used. `stored`: the id of the newest master key
    that its data keys are wrapped with; None: it is not encrypted."""
    if stored is None and masters is not None:
        raise WrongMasterKey(
            "the database is not encrypted, and storage.encryption_key is set: "
            "run `om-proxy encrypt`, or remove the key"
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
