"""Say what has become of forgotten bytes in an SQLite file."""

from __future__ import annotations

from om_proxy.storage.sql.record_keeping import RecordMethods
from om_proxy.storage.sqlite.eraser import IS_ERASURE_PENDING
from om_proxy.storage.values.records import ForgetResult


class SqliteRecords(RecordMethods):
    """The `RecordKeeping` of an SQLite file."""

    _are_bytes_gone = f"NOT ({IS_ERASURE_PENDING})"

    @staticmethod
    def _settle(result: ForgetResult, are_bytes_gone: bool, is_destroyed: bool) -> ForgetResult:
        if are_bytes_gone:
            result = result._replace(database="gone", log="gone")
        return result.settle_keys(is_destroyed=is_destroyed)
