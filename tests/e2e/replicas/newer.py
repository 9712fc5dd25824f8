"""Serve as the next release of `om-proxy` would: with one more migration, which adds to the schema.

Usage: python -m tests.e2e.replicas.newer serve --config om-proxy.yaml
"""

from __future__ import annotations

import sys

from om_proxy import cli
from om_proxy.storage import promises
from om_proxy.storage.postgres import schema
from om_proxy.storage.shared.migrate import Migration, list_migrations

# what a release may do: columns of tables that every turn reads and writes, an index, a table
ADDED = """
ALTER TABLE om.thread ADD COLUMN newer bigint NOT NULL DEFAULT 7;
ALTER TABLE om.message ADD COLUMN newer bytea;
ALTER TABLE om.observation ADD COLUMN newer text NOT NULL DEFAULT 'newer';
CREATE INDEX thread_newer ON om.thread (newer);
CREATE TABLE om.newer (id bigint PRIMARY KEY);
"""


def list_newer_migrations(backend: str) -> tuple[Migration, ...]:
    shipped = list_migrations(backend)
    return (*shipped, Migration(shipped[-1].number + 1, "newer", ADDED))


if __name__ == "__main__":
    for module in (schema, promises):
        module.list_migrations = list_newer_migrations  # type: ignore[assignment,attr-defined] - the newer release
    sys.exit(cli.main(sys.argv[1:]))
