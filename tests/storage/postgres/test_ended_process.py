"""A process that ends anywhere in its work on a PostgreSQL schema."""

from __future__ import annotations

from om_proxy.storage.postgres import removal
from om_proxy.storage.postgres.session import Session
from tests.storage.ended_process_contract import EndedProcessContract


class TestPostgresEndedProcess(EndedProcessContract):
    """The contract on a schema of its own."""

    methods = (Session, "select", "execute")
    removal = removal
