"""Say what has become of forgotten bytes in a PostgreSQL schema."""

from __future__ import annotations

from om_proxy.storage.sql.record_keeping import RecordMethods
from om_proxy.storage.values.records import ForgetResult


class PostgresRecords(RecordMethods):
    """The `RecordKeeping` of a PostgreSQL schema."""

    # the number of a receipt is the default: a version. All tables may have been rewritten since.
    _are_bytes_gone = "number < coalesce((SELECT through FROM om.rewrite WHERE name = ''), 0)"

    @staticmethod
    def _settle(result: ForgetResult, are_bytes_gone: bool, is_destroyed: bool) -> ForgetResult:
        if result.backups == "pending":
            return result.settle_keys(is_destroyed=is_destroyed)
        # here no byte ever waits for a reader to end: such a receipt was copied from another backend
        if result.database == "pending" or (are_bytes_gone and result.database == "until_rewrite"):
            result = result._replace(database="gone")
        return result._replace(log="gone") if result.log == "pending" else result
