"""`om-proxy backup`: copy the SQLite file as of now, while a server uses it."""

from __future__ import annotations

import argparse
from pathlib import Path

from om_proxy.cli.exit_status import DONE
from om_proxy.cli.progress import show_progress
from om_proxy.doctor.report import find_database
from om_proxy.errors import UsageError
from om_proxy.settings import load
from om_proxy.storage.sqlite.backup import back_up_file


def run(options: argparse.Namespace) -> int:
    database = find_database(load(options.config))
    if database is None:
        raise UsageError(
            "storage.url names a server, which has backups of its own: for PostgreSQL pg_dump or "
            "archived WAL, for Redis its AOF (docs/guides/moving.md#backups)"
        )
    target = Path(options.file)
    with show_progress(f"writing {target}"):
        back_up_file(database, target, is_compact=options.compact)
    print(f"backed up: {target}, {target.stat().st_size / 2**20:.1f} MiB")
    return DONE
