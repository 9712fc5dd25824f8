"""What the stores of SQL databases share: all but how each runs its work, and what that does in
words of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from om_proxy.storage.encryption.key_store import DoomedKeys, KeyRotation, SeparateKeys
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.sql.committing import CommitMethods
from om_proxy.storage.sql.encryption import SecretMethods
from om_proxy.storage.sql.events import EventMethods
from om_proxy.storage.sql.forgotten_names import ForgottenNameMethods
from om_proxy.storage.sql.key_rows import KeyRowMethods
from om_proxy.storage.sql.leases import LeaseMethods
from om_proxy.storage.sql.ledger import LedgerMethods
from om_proxy.storage.sql.listing import ListingMethods
from om_proxy.storage.sql.record_keeping import RecordMethods
from om_proxy.storage.sql.restoring import RestoringMethods
from om_proxy.storage.sql.search import SearchMethods
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sql.tenant_move import TenantMoveMethods
from om_proxy.storage.sql.thread_rows import ThreadRowMethods
from om_proxy.storage.sql.vectors import VectorMethods
from om_proxy.storage.store_secret import StoreSecret

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.encryption.row_cipher import WrappedKey


class SharedStore(
    ThreadRowMethods,
    EventMethods,
    LeaseMethods,
    SearchMethods,
    VectorMethods,
    RecordMethods,
    CommitMethods,
    TenantMoveMethods,
    KeyRowMethods,
    LedgerMethods,
    ListingMethods,
    RestoringMethods,
    ForgottenNameMethods,
    SecretMethods,
):
    """The methods of both stores, and the keys that they work with."""

    def __init__(
        self,
        select_keys: Callable[[Session, Sequence[bytes]], Awaitable[list[WrappedKey]]],
        generations: int | None,
        masters: MasterKeys | None,
        separate: SeparateKeys | None,
    ) -> None:
        """`generations`, `masters`, `separate`: as the stores say that are opened with them."""
        self._generations = generations
        self._masters = masters
        self._keys = Keyring(select_keys, masters)
        self._separate = separate
        self._doomed = DoomedKeys(separate, self)
        self._secret = StoreSecret(self._keep_secret, self._adopt_secret)
        self.key_rotation = KeyRotation(self._keys, self)

    def use_key_store(self) -> None:
        """Look for keys where they are kept apart, once the database is admitted."""
        self._keys.separate = self._separate
